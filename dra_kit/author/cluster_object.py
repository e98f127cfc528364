"""``ClusterObject``: an object in the cluster that exists as long as a claim needs it, as an effect."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Protocol, Self, final

from pydantic import Field, JsonValue, PrivateAttr

from dra_kit.author.calls import call
from dra_kit.author.effect import Effect
from dra_kit.author.model import HardwareT
from dra_kit.errors import ConfigurationError, NotYet

_VERBS: Final = ("get", "create", "patch", "delete")
_ID_MAX: Final = 200  # with the UID it stays a DNS subdomain of at most 253 bytes
_API_VERSION: Final = re.compile(r"(?:[a-z0-9.-]+/)?v[0-9][a-z0-9]*").fullmatch


@dataclass(frozen=True, slots=True)
class AppliedObject:
    """The outcome of a :class:`ClusterObject`.

    Attributes:
        name: of the object.
        uid: of the object; a different UID means that the object was deleted and created again.
        namespace: of the object, empty for one of a cluster-scoped kind.
        status: its ``status`` at the time it became ready.
    """

    name: str
    uid: str
    namespace: str = ""
    status: Mapping[str, JsonValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ObjectAddress:
    """Where an object is in the API.

    Attributes:
        api_version: such as ``example.com/v1``.
        kind: of the object.
        plural: of its kind, as in paths and RBAC rules.
        namespace: empty for a cluster-scoped kind.
        name: of the object.
    """

    api_version: str
    kind: str
    plural: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}" if self.namespace else f"{self.kind} {self.name}"


class ClusterObjectClient(Protocol):
    """Applies, reads and deletes objects; the node role and ``dra_kit.testing`` implement it.

    Each method raises a DraKitError when the API server refuses or cannot be reached.
    """

    async def apply(self, address: ObjectAddress, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Apply the object by server-side apply, owned by the Node; return the object as stored."""
        ...

    async def get(self, address: ObjectAddress) -> Mapping[str, Any] | None:
        """Return the object; None when there is none."""
        ...

    async def delete(self, address: ObjectAddress) -> None:
        """Delete the object and wait until it is gone.

        Raises:
            TransientError: another client's finalizer still blocks the deletion.
        """
        ...


class ClusterObject(Effect[AppliedObject, HardwareT]):
    """An object in the cluster, created for one claim by the node that prepares it::

        class Attachment(
            dra.ClusterObject, id="attachment", api_version="fabric.example/v1", kind="Attachment",
            plural="attachments", ready_condition="Attached",
        ):
            port: str

            def body(self) -> dict[str, Any]:
                return {"spec": {"port": self.port}}

        applied = await device.ensure(Attachment(claim_uid=claim.uid, namespace=claim.namespace, port="7"))

    It is applied by server-side apply with the driver's name as the field manager. Its name consists of the effect's
    id and the claim's UID, and it is owned by the Node: it is garbage-collected with the Node, not with the claim, the
    pod or the driver's DaemonSet. ``prepare`` continues when its condition is True. If another client deletes it, it is
    applied again. When the claim is released the object is deleted, and the claim waits until it is gone.

    The node's ServiceAccount needs the permissions of :meth:`rules`, in the namespaces of :meth:`namespaces`. The
    chart values that ``dra-kit chart TARGET --values FILE`` writes include them.

    Args:
        claim_uid: of the claim that needs it.
        namespace: the namespace it is created in; omitted for a cluster-scoped kind.

    Class arguments:
        api_version: such as ``fabric.example/v1``.
        kind: of the object.
        plural: of the kind, as in RBAC rules.
        namespaced: False for a cluster-scoped kind.
        ready_condition: the type of the condition in ``status.conditions`` that must be True; without one the object
                is ready as soon as it exists, unless ``ready`` is overridden.
    """

    object_api_version: ClassVar[str] = ""
    object_kind: ClassVar[str] = ""
    object_plural: ClassVar[str] = ""
    object_namespaced: ClassVar[bool] = True
    object_condition: ClassVar[str | None] = None
    _keeper: ClusterObjectClient | None = PrivateAttr(default=None)

    claim_uid: str = Field(min_length=1)
    namespace: str = ""

    def __init_subclass__(
        cls,
        *,
        api_version: str | None = None,
        kind: str | None = None,
        plural: str | None = None,
        namespaced: bool | None = None,
        ready_condition: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init_subclass__(**kwargs)
        if api_version is not None and not _API_VERSION(api_version):
            raise ConfigurationError(
                f"effect {cls.__name__}: api_version {api_version!r} is not valid; write <group>/<version>, such as "
                "'fabric.example/v1'"
            )
        cls.object_api_version = api_version or cls.object_api_version
        cls.object_kind = kind or cls.object_kind
        cls.object_plural = plural or cls.object_plural
        cls.object_namespaced = cls.object_namespaced if namespaced is None else namespaced
        cls.object_condition = ready_condition or cls.object_condition
        needed = {"api_version": cls.object_api_version, "kind": cls.object_kind, "plural": cls.object_plural}
        missing = [name for name, value in needed.items() if not value]
        if cls.effect_id and missing:
            raise ConfigurationError(
                f"effect {cls.__name__} does not say which objects it makes; add {', '.join(missing)} to its class "
                "arguments"
            )

    @abstractmethod
    def body(self) -> Mapping[str, Any]:
        """Return the fields of the object that this effect owns, such as ``spec`` and ``metadata.labels``.

        ``apiVersion``, ``kind``, and the metadata's name, namespace and owner are set by the framework.
        """

    def ready(self, applied: Mapping[str, Any]) -> bool | Awaitable[bool]:
        """Return whether the object in the API server is ready for the claim; by default its condition says so."""
        if self.object_condition is None:
            return True
        conditions: Sequence[Mapping[str, Any]] = (applied.get("status") or {}).get("conditions") or ()
        return any(item.get("type") == self.object_condition and item.get("status") == "True" for item in conditions)

    def keys(self) -> list[str]:
        """Return the object itself."""
        address = self.address()
        return ["/".join(filter(None, (address.plural, address.namespace, address.name)))]

    def title(self) -> str:
        """Return the object's kind, namespace and name."""
        return str(self.address())

    def address(self) -> ObjectAddress:
        """Return where the object is.

        Raises:
            ConfigurationError: the namespace is missing, or is not allowed.
        """
        if self.object_namespaced != bool(self.namespace):
            kind = "namespaced" if self.object_namespaced else "cluster-scoped"
            remedy = "give namespace=claim.namespace" if self.object_namespaced else "leave namespace out"
            raise ConfigurationError(f"effect {type(self).__name__}: {self.object_kind} is {kind}; {remedy}")
        prefix = re.sub(r"[^a-z0-9-]+", "-", self.effect_id.lower()).strip("-")[:_ID_MAX]
        name = f"{prefix}-{self.claim_uid}" if prefix else self.claim_uid
        return ObjectAddress(self.object_api_version, self.object_kind, self.object_plural, self.namespace, name)

    @classmethod
    def rules(cls) -> list[dict[str, list[str]]]:
        """Return the permissions the node's ServiceAccount needs, as PolicyRules of rbac.authorization.k8s.io/v1."""
        group = cls.object_api_version.rpartition("/")[0]
        return [{"apiGroups": [group], "resources": [cls.object_plural], "verbs": list(_VERBS)}]

    @classmethod
    def namespaces(cls, settings: Any) -> Sequence[str] | None:
        """Return the namespaces in which the driver creates such objects; its account needs permissions only there.

        The driver also lists the objects there, to find those that its own records no longer contain.

        Args:
            settings: an instance of ``Driver(settings=…)``; None for a driver without settings.

        Returns:
            Names of namespaces; empty if it creates no such objects. None, the default: the namespaces are not known in
            advance (for example those of the claims), or the objects have none.
        """
        del settings
        return None

    def ended(self, found: Mapping[str, Any]) -> bool | Awaitable[bool]:
        """Return whether the object has failed permanently, like a pod in phase Failed; it is deleted and recreated."""
        del found
        return False

    def with_keeper(self, keeper: ClusterObjectClient) -> Self:
        """Return the same effect with this client. The framework calls it."""
        bound = self.model_copy()
        bound._keeper = keeper  # noqa: SLF001 - of the same class
        return bound

    @final
    async def apply(self, previous: AppliedObject | None) -> AppliedObject:
        """Apply the object and wait until it is ready."""
        del previous  # its name is always the same
        address, keeper = self.address(), self._needed_keeper()
        found = await keeper.get(address)
        if found is not None and (found["metadata"].get("deletionTimestamp") or await call(self.ended, found)):
            await keeper.delete(address)  # waits: a terminating object may still report that it is ready
        applied = await keeper.apply(address, self.body())
        if not await call(self.ready, applied):
            raise NotYet(f"{address} is not ready yet{self._why_not(applied)}")
        status = applied.get("status")
        return AppliedObject(
            address.name, applied["metadata"]["uid"], address.namespace, status if isinstance(status, dict) else {}
        )

    @final
    async def holds(self, outcome: AppliedObject) -> bool:
        """Return whether the object exists, has not ended, and is not being deleted."""
        found = await self._needed_keeper().get(self.address())
        if found is None or found["metadata"].get("deletionTimestamp") or found["metadata"]["uid"] != outcome.uid:
            return False
        return not await call(self.ended, found)

    @final
    async def revert(self, outcome: AppliedObject | None) -> None:
        """Delete the object and wait until it is gone."""
        del outcome
        await self._needed_keeper().delete(self.address())

    def _why_not(self, applied: Mapping[str, Any]) -> str:
        conditions: Sequence[Mapping[str, Any]] = (applied.get("status") or {}).get("conditions") or ()
        for item in conditions:
            if item.get("type") == self.object_condition and item.get("message"):
                return f": {item['message']}"
        return f": it has no condition {self.object_condition} yet" if self.object_condition else ""

    def _needed_keeper(self) -> ClusterObjectClient:
        if self._keeper is None:
            raise ConfigurationError(
                f"effect {type(self).__name__}: nothing applies its object; ensure it in prepare, in a test with "
                "dra_kit.testing.unit"
            )
        return self._keeper
