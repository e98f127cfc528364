"""The records of claims and effects: everything an answer or a release needs, without the API."""

from __future__ import annotations

from typing import Any, ClassVar, Final, Literal

from pydantic import BaseModel, ConfigDict, JsonValue

from dra_kit.kubelet.cdi.spec import Spec
from dra_kit.kubelet.plugin_server import KubeletDevice
from dra_kit.kubernetes.resource.objects import ClaimReference


class DeviceRecord(BaseModel):
    """One allocation result of a claim, prepared."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="allow")

    request: str
    pool: str
    device: str
    share_id: str | None = None
    admin_access: bool = False
    cdi_devices: tuple[str, ...] = ()
    hardware_ids: tuple[str, ...] = ()
    """What the author says the hardware calls it; none in what releases up to 0.1 wrote."""
    state: JsonValue = None
    status: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None
    told_later: tuple[Literal["status", "metadata"], ...] = ()
    """Which of the two ``context.update`` has replaced since the device was prepared for the first time."""
    advertised: str = ""
    """What releases up to 0.1 compare: a fingerprint of all that the device advertised when it was prepared."""
    identity: dict[str, str] | None = None
    """Hashes of what made it the same device then, by key; None in what those releases wrote."""

    def answer(self) -> KubeletDevice:
        """Return what the kubelet gets."""
        return KubeletDevice((self.request,), self.pool, self.device, self.cdi_devices, self.share_id)


class ClaimRecord(BaseModel):
    """A claim that was prepared, valid for its UID *and* its allocation.

    Attributes:
        allocation: fingerprint of our results and configs; another one means another preparation.
        boot_id: the boot it was prepared in; after a reboot it is prepared again.
        phase: ``prepared``, or ``releasing`` from the moment an unprepare was accepted until it is done.
        preparing: it is being prepared for the first time, and nobody learnt that it is prepared. Its phase is
            ``releasing``: if that is all that is left of it, whatever has been done is to be undone, and a release that
            does not know this field does so, too.
        spec: the CDI spec, from which the file is made again whenever it is missing; None when nothing is edited.
        pods: names of the pods that it was reserved for when it was prepared; others may have come since.
        pod_claim_name: of a claim made from a template: part of the path of its metadata.
        metadata_generation: rises when the metadata changes.
        outdated: it is being prepared again, for a device changed; effects need not be those of the record any more.
        imperative: whether the driver that prepared it has an ``unprepare`` of its own; nothing else releases it.
        sees: numbers of the effects whose outcomes it was given without needing them, for its admin access.
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
    pod_claim_name: str | None = None
    metadata_generation: int = 1
    outdated: bool = False
    imperative: bool = False
    sees: tuple[int, ...] = ()

    def has(self, pool: str, device: str) -> bool:
        """Return whether the claim was prepared with that device."""
        return any((item.pool, item.device) == (pool, device) for item in self.devices)

    def to_json(self) -> str:
        """Return the record as it is stored; what has its default is left out."""
        return self.model_dump_json(exclude_defaults=True)

    @property
    def reference(self) -> ClaimReference:
        """The claim by name and identity."""
        return ClaimReference(self.namespace, self.name, self.uid)

    def answer(self) -> list[KubeletDevice]:
        """Return what the kubelet gets, the same every time."""
        return [device.answer() for device in self.devices]


UNKNOWN_BOOT: Final = ""
"""Boot id of an effect that was found without a record: when it was applied, nobody knows, nor who uses it."""


class EffectRecord(BaseModel):
    """A change to hardware that was intended (``intent``), is in force (``applied``) or is being undone.

    Attributes:
        number: rises with every new effect; effects are undone in reverse.
        effect: the stable id of its class.
        spec: JSON of its fields as it was first stored; equal fields are the same effect, whatever their text.
        defaults: names in ``spec`` whose value is the default of the release that stored it.
        keys: what it touches.
        outcome: JSON of what ``apply`` returned last, None until then, or where nobody knows.
        claims: the claims that need it.
        error: why it could not be undone, empty when that did not fail.
        undo: JSON of what undoes it without its class (:mod:`dra_kit.node.effects.without_code`), empty where nothing
            but its class can.
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
