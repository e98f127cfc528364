"""The records of claims and effects: everything an answer or a release needs, without the API."""

from __future__ import annotations

from typing import Any, ClassVar, Final, Literal

from pydantic import BaseModel, ConfigDict, JsonValue

from dra_kit.author.claim import ConsumerReference, PreparedDevice
from dra_kit.kubelet.cdi.spec import Spec
from dra_kit.kubelet.plugin_server import KubeletDevice
from dra_kit.kubernetes.resource.objects import ClaimReference


class DeviceRecord(BaseModel):
    """One prepared allocation result of a claim."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="allow")

    request: str
    """Name of the claim's request, without its subrequest: the kubelet compares it with the requests of containers."""
    pool: str
    device: str
    share_id: str | None = None
    admin_access: bool = False
    cdi_devices: tuple[str, ...] = ()
    hardware_ids: tuple[str, ...] = ()
    """How the author's code identifies the hardware; empty in records of releases up to 0.1."""
    state: JsonValue = None
    status: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None
    told_later: tuple[Literal["status", "metadata"], ...] = ()
    """Which of the two fields ``context.update`` has replaced since the device was first prepared."""
    advertised: str = ""
    """Used by releases up to 0.1: a fingerprint of everything that the device advertised when it was prepared."""
    identity: dict[str, str] | None = None
    """Hashes of the device's identity at that time, by key; None in records of those releases."""

    def for_author(self) -> PreparedDevice:
        """Return the device as the author's code sees it."""
        return PreparedDevice(
            pool=self.pool, device=self.device, share_id=self.share_id, request=self.request, state=self.state
        )

    def answer(self) -> KubeletDevice:
        """Return what the kubelet gets, which names the request without its subrequest."""
        return KubeletDevice((self.request,), self.pool, self.device, self.cdi_devices, self.share_id)


class ClaimRecord(BaseModel):
    """A prepared claim, valid for its UID *and* its allocation.

    A new field needs a default, because records of older releases lack it. The version of the tables stays, because
    older releases accept fields that they do not know.

    Attributes:
        allocation: fingerprint of this driver's results and configs; another one requires another preparation.
        boot_id: the boot it was prepared in; after a reboot it is prepared again.
        phase: ``prepared``, or ``releasing`` from the moment an unprepare was accepted until it is done.
        preparing: it is being prepared for the first time, which was not reported as done. Its phase is ``releasing``,
            so that after a crash everything is undone, also by a release that does not know this field.
        spec: the CDI spec, from which a missing file is restored; None without edits.
        pods: names of the pods that it was reserved for when it was prepared; more may have been added since.
        consumers: for whom it was reserved then, pods included; empty in records of releases up to 0.1.
        pod_claim_name: for a claim made from a template: part of the path of its metadata.
        metadata_generation: increases when the metadata changes.
        outdated: it is being prepared again, for a changed device; its effects may not match the record any more.
        imperative: whether the driver that prepared it had its own ``unprepare`` (``has_unprepare`` of the runner);
            nothing else can release it. Records of older releases have the field under this name.
        sees: numbers of the effects whose outcomes it received through admin access, without needing them.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="allow")

    namespace: str
    name: str
    uid: str
    allocation: str
    boot_id: str
    phase: Literal["prepared", "releasing"] = "prepared"
    preparing: bool = False
    devices: tuple[DeviceRecord, ...] = ()
    spec: Spec | None = None
    pods: tuple[str, ...] = ()
    consumers: tuple[ConsumerReference, ...] = ()
    pod_claim_name: str | None = None
    metadata_generation: int = 1
    outdated: bool = False
    imperative: bool = False
    sees: tuple[int, ...] = ()

    def has(self, pool: str, device: str) -> bool:
        """Return whether the claim was prepared with that device."""
        return any((item.pool, item.device) == (pool, device) for item in self.devices)

    def is_in_force(self, boot_id: str) -> bool:
        """Return whether the claim is prepared, and was prepared in this boot."""
        return self.phase == "prepared" and self.boot_id == boot_id

    @property
    def reference(self) -> ClaimReference:
        """The claim by name and identity."""
        return ClaimReference(self.namespace, self.name, self.uid)

    def answer(self) -> list[KubeletDevice]:
        """Return what the kubelet gets, the same every time."""
        return [device.answer() for device in self.devices]


UNKNOWN_BOOT: Final = ""
"""Boot id of an effect that was found without a record: when it was applied, and for which claims, is unknown."""


class EffectRecord(BaseModel):
    """A change to hardware that was intended (``intent``), is in force (``applied``) or is being reverted.

    Attributes:
        number: increases with every new effect; effects are reverted in reverse order.
        effect: the stable id of its class.
        spec: JSON of its fields as first stored; equal fields are the same effect, whatever their text.
        defaults: names in ``spec`` whose value is the default of the release that stored it.
        keys: what it touches.
        outcome: JSON of what ``apply`` returned last; None before that, or if unknown.
        claims: the claims that need it.
        error: why it could not be reverted; empty if that did not fail.
        undo: JSON with which it can be reverted without its class (:mod:`dra_kit.node.effects.classes`), empty if
            only its class can revert it.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True)

    number: int
    effect: str
    spec: str
    keys: tuple[str, ...]
    phase: Literal["intent", "applied", "reverting"]
    outcome: str | None = None
    boot_id: str
    claims: tuple[ClaimReference, ...] = ()
    error: str = ""
    defaults: tuple[str, ...] = ()
    undo: str = ""
