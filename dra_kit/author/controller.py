"""What an author gives to the controller: claim observer, device binder, taint rules, and the API for handlers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterable, Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC
from typing import Any, Self

from pydantic import model_validator

from dra_kit.author.claim import ConsumerReference
from dra_kit.author.context import ControllerComponent
from dra_kit.author.device_fields import DeviceTaint
from dra_kit.author.model import AuthorModel, AuthorSettingsT, invalid_device, short_repr
from dra_kit.kubernetes.resource import v1
from dra_kit.kubernetes.resource.api_model import ObjectMeta
from dra_kit.kubernetes.resource.names import device_name
from dra_kit.kubernetes.resource.objects import ClaimReference
from dra_kit.kubernetes.resource.validation.slices import validate_taint_rule
from dra_kit.kubernetes.values.quantity import Quantity


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedDevice:
    """One device of a claim's allocation (``status.allocation.devices.results[]`` of resource.k8s.io/v1).

    Attributes:
        name: the device's name.
        pool: its pool.
        request: the request of the claim that it satisfies; ``gpu/small`` for an alternative of a request.
        share_id: distinguishes the shares of a device with ``allow_multiple_allocations``.
        consumed_capacity: what this claim takes of such a device.
        admin_access: the claim may look at the device while others use it.
        binding_conditions: the conditions that must be true before the pod is bound (KEP-5007).
        binding_failure_conditions: those with one of which the device has failed.
    """

    name: str
    pool: str
    request: str = ""
    share_id: str | None = None
    consumed_capacity: Mapping[str, Quantity] = field(default_factory=dict)
    admin_access: bool = False
    binding_conditions: tuple[str, ...] = ()
    binding_failure_conditions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedClaim(ClaimReference):
    """A ResourceClaim with the devices of this driver that it holds, or held last.

    Attributes:
        devices: of this driver; those of other drivers are nothing to it.
        consumers: who may use the claim in that state (``status.reservedFor``).
        node: the node that the allocation is bound to; None where several may use it.
    """

    devices: tuple[ObservedDevice, ...] = ()
    consumers: tuple[ConsumerReference, ...] = ()
    node: str | None = None


class ClaimObserver(ControllerComponent[AuthorSettingsT]):
    """Learns what becomes of claims that hold devices of this driver; each method may be ``def`` or ``async def``.

    The hooks run in the active replica of the controller, far from the node: they can neither hinder nor delay a pod.
    ``self.context`` has the driver's settings, of the type that ``ClaimObserver[Settings]`` says, and ``metrics``.

    - Each is called **at least once**: again when the controller is started again or another replica takes over. Make
      them idempotent, by ``claim.uid``.
    - When a replica becomes active, ``allocated`` and ``reserved`` are called for every claim that holds devices, old
      ones too; then what happened while the lease changed hands, and what a replica that was killed had not finished,
      for half an hour. What was released while no replica ran at all is not
      reported: compare with what ``allocated`` tells at the start.
    - Those of one claim come one after the other, in order; those of different claims overlap.
    - A :class:`~dra_kit.TransientError` is tried again, after 1 s, 2 s, 5 s, 15 s and then every minute; later hooks of
      that claim wait for it, no other claim does. Any other exception is logged, and the hook is over.
    """

    def allocated(self, claim: ObservedClaim) -> Awaitable[None] | None:
        """React to a claim to which the scheduler gave ``claim.devices``."""
        del claim
        return None

    def reserved(self, claim: ObservedClaim, consumers: Sequence[ConsumerReference]) -> Awaitable[None] | None:
        """React to ``consumers`` that may use the claim from now on; usually one pod."""
        del claim, consumers
        return None

    def released(self, claim: ObservedClaim, consumers: Sequence[ConsumerReference]) -> Awaitable[None] | None:
        """React to ``consumers`` that no longer use the claim, or to a deallocation: ``claim.devices`` says which.

        In the first case the claim keeps the devices, in the second ``claim.consumers`` is empty.
        """
        del claim, consumers
        return None

    def deleted(self, claim: ObservedClaim) -> Awaitable[None] | None:
        """React to a claim that is gone, and with it its hold on ``claim.devices``."""
        del claim
        return None


class DeviceBinder(ControllerComponent[AuthorSettingsT], ABC):
    """Attaches devices that have ``binding_conditions``; every method may be ``def`` or ``async def``.

    The scheduler allocates such a device, and does not let the pod go to its node before all conditions are true in
    ``claim.status.devices[]``, for at most ten minutes (``bindingTimeout`` of kube-scheduler's DynamicResources plugin,
    600 s by default). The framework writes them, by what :meth:`bind` does. It needs the gate
    DRADeviceBindingConditions (on by default from Kubernetes 1.36); without it the API server drops the conditions, and
    nothing of this is called.

    The methods run in the active replica of the controller. Those of one device come one after the other, those of
    different devices at once, up to 32.
    """

    @abstractmethod
    def bind(self, claim: ObservedClaim, device: ObservedDevice) -> Awaitable[None] | None:
        """Make the device ready for the claim, on ``claim.node`` where the allocation is bound to one.

        Must be repeatable: a controller that starts again asks again for all that is not reported yet, and a claim that
        was released meanwhile may get the same device again. Returning means that all ``binding_conditions`` are true.

        Give devices ``binds_to_node=True`` when it matters which node that is.

        Raises:
            NotYet: it is still coming up; asked again with a growing pause.
            PermanentError: it will not succeed: the ``binding_failure_conditions`` become true, with this text. The
                scheduler takes the device back and tries again, perhaps with the same one: publish a failed device
                with a taint, or no more.
            Exception: any other is logged and tried again, like NotYet.
        """

    def release(self, claim: ObservedClaim, device: ObservedDevice) -> Awaitable[None] | None:
        """Let go of a device that a claim has no longer, whether or not :meth:`bind` had ended; nothing by default.

        Must be repeatable. The device is not bound for another claim before this has returned. NotYet and other errors
        are tried again; a PermanentError is logged and ends it. What is released while no controller runs is reported
        by :meth:`resume` alone.
        """
        del claim, device
        return None

    def resume(self, held: Sequence[tuple[ObservedClaim, ObservedDevice]]) -> Awaitable[None] | None:
        """Resume when the controller becomes active, before anything is bound: ``held`` is all that claims hold now.

        Whatever else is attached was released while nobody looked: detach it. Nothing by default. When it raises, the
        error is logged and it is called again.
        """
        del held
        return None


class TaintRule(AuthorModel):
    """A taint for devices of this driver (``DeviceTaintRule``, KEP-5055); never for those of another.

    Args:
        name: a DNS label, unique in the set. The rule is the object ``<name>.<driver>`` for as long as it is in the
            set: one that changes is changed in place.
        taint: what the devices get. With ``NoExecute`` pods that use them, and do not tolerate it, are evicted.
        pool: only devices of this pool.
        device: only devices of this name.

    Raises:
        InvalidDevice: a name, key or value breaks a rule of the API.
    """

    name: str
    taint: DeviceTaint
    pool: str | None = None
    device: str | None = None

    @model_validator(mode="after")
    def _obeys_the_api(self) -> Self:
        of_spec = [
            replace(error, path=error.path.removeprefix("spec.").removeprefix("deviceSelector."))
            for error in validate_taint_rule(self.to_v1("driver"))
        ]
        errors = [*device_name(self.name, "name"), *of_spec]
        if errors:
            raise invalid_device(f"TaintRule {short_repr(self.name)}", errors)
        return self

    def to_v1(self, driver: str) -> v1.DeviceTaintRule:
        """Return the rule as it is published, without labels and owner."""
        time = self.taint.time_added
        taint = v1.DeviceTaint(
            key=self.taint.key,
            value=self.taint.value,
            effect=self.taint.effect,
            time_added=None if time is None else time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        )
        return v1.DeviceTaintRule(
            metadata=ObjectMeta(name=f"{self.name}.{driver}"),
            spec=v1.DeviceTaintRuleSpec(
                device_selector=v1.DeviceTaintSelector(driver=driver, pool=self.pool, device=self.device), taint=taint
            ),
        )


class TaintRuleSource(ControllerComponent[AuthorSettingsT], ABC):
    """Tells which devices are to be tainted; the framework makes DeviceTaintRules of it, from the active controller.

    Rules of other people and drivers are never touched. It needs Kubernetes 1.37, or 1.35 with the gate
    DRADeviceTaintRules and one of the versions v1beta2 and v1alpha3 of resource.k8s.io switched on.
    """

    @abstractmethod
    def rules(self) -> AsyncIterable[Sequence[TaintRule]] | Iterable[Sequence[TaintRule]]:
        """Yield *complete* sets of rules; write it as an ``async def`` or ``def`` generator.

        What a set does not have any more is deleted; ``yield []`` deletes all. A generator that ends has nothing more
        to say. It runs in a thread of its own, so it may block. When it raises, the error is logged, the rules stay,
        and it is started again after a while. ``context.rescan()`` starts it again from the beginning.
        """


class ClusterApi(ABC):
    """Given to handlers as ``memo.cluster``, with the rights of the controller: ``controller.extraRules`` adds some.

    An object is identified by its ``apiVersion``, the plural of its kind as in RBAC rules, and its name; ``namespace``
    is for namespaced kinds. Every method raises a :class:`~dra_kit.DraKitError` where the API server refuses or does
    not answer.
    """

    @abstractmethod
    async def get(
        self, api_version: str, plural: str, name: str, namespace: str | None = None
    ) -> Mapping[str, Any] | None:
        """Return one object; None when there is none."""

    @abstractmethod
    async def list(
        self, api_version: str, plural: str, namespace: str | None = None, *, label_selector: str = ""
    ) -> Sequence[Mapping[str, Any]]:
        """Return all objects of a kind, of one namespace or of all."""

    @abstractmethod
    async def apply(self, plural: str, manifest: Mapping[str, Any]) -> Mapping[str, Any]:
        """Make an object as the manifest says, by server-side apply as owner ``<driver>/controller``; as it is stored.

        Fields that somebody else has set and the manifest names are taken over.
        """

    @abstractmethod
    async def delete(self, api_version: str, plural: str, name: str, namespace: str | None = None) -> None:
        """Delete an object; one that is gone already is no error."""
