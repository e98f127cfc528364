"""The author's extensions of the controller: claim observer, device binder and taint rules."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterable, Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from pydantic import model_validator

from dra_kit.author.claim import ConsumerReference
from dra_kit.author.context import ControllerComponent
from dra_kit.author.device import DeviceTaint, to_plain
from dra_kit.author.model import AUTHOR_RELEASE, AuthorModel, AuthorSettingsT, invalid_device, short_repr
from dra_kit.kubernetes.resource import v1
from dra_kit.kubernetes.resource.api_model import ObjectMeta
from dra_kit.kubernetes.resource.names import label_errors
from dra_kit.kubernetes.resource.objects import ClaimReference
from dra_kit.kubernetes.resource.validation.slices import validate_taint_rule
from dra_kit.kubernetes.values.quantity import Quantity


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedDevice:
    """One device of a claim's allocation (``status.allocation.devices.results[]`` of resource.k8s.io/v1).

    Attributes:
        name: the device's name.
        pool: its pool.
        request: the claim's request that it satisfies; ``gpu/small`` for an alternative of a request.
        share_id: distinguishes the shares of a device with ``allow_multiple_allocations``.
        consumed_capacity: what this claim takes of such a device.
        admin_access: the claim may inspect the device while others use it.
        binding_conditions: the conditions that must be true before the pod is bound (KEP-5007).
        binding_failure_conditions: the device has failed if one of these is true.
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
    """A ResourceClaim with the devices of this driver that it holds or last held.

    Attributes:
        devices: only those of this driver.
        consumers: the consumers that may use the claim in that state (``status.reservedFor``).
        node: the node that the allocation is bound to; None if several nodes may use it.
    """

    devices: tuple[ObservedDevice, ...] = ()
    consumers: tuple[ConsumerReference, ...] = ()
    node: str | None = None


class ClaimObserver(ControllerComponent[AuthorSettingsT]):
    """Observes claims that hold devices of this driver; each method may be ``def`` or ``async def``.

    The hooks run in the active replica of the controller, not on the node: they can neither block nor delay a pod.
    ``self.context`` has ``metrics``, ``cluster`` for objects of the cluster, and the driver's settings, of the type
    given in ``ClaimObserver[Settings]``.

    - Each hook is called **at least once**: again when the controller restarts or another replica takes over. Make
      hooks idempotent, by ``claim.uid``.
    - When a replica becomes active, ``allocated`` and ``reserved`` are called for every claim that holds devices,
      including old ones. Then follow the changes made while the lease changed hands,
      and hooks that a killed replica had not finished, for up to half an hour. Releases while no replica was running
      are not reported: compare your records with the ``allocated`` calls at startup.
    - Hooks for one claim are called one at a time, in order; hooks for different claims run concurrently.
    - A :class:`~dra_kit.TransientError` is retried after 1 s, 2 s, 5 s, 15 s and then every minute. Later hooks of that
      claim wait; other claims are not affected. Any other exception is logged, and the hook is not retried.
    """

    def allocated(self, claim: ObservedClaim) -> Awaitable[None] | None:
        """React to a claim to which the scheduler allocated ``claim.devices``."""
        del claim
        return None

    def reserved(self, claim: ObservedClaim, consumers: Sequence[ConsumerReference]) -> Awaitable[None] | None:
        """React to ``consumers`` that may now use the claim; usually one pod."""
        del claim, consumers
        return None

    def released(self, claim: ObservedClaim, consumers: Sequence[ConsumerReference]) -> Awaitable[None] | None:
        """React to ``consumers`` that no longer use the claim, or to a deallocation; ``claim`` shows which.

        In the first case the claim keeps the devices, in the second ``claim.consumers`` is empty.
        """
        del claim, consumers
        return None

    def deleted(self, claim: ObservedClaim) -> Awaitable[None] | None:
        """React to a deleted claim, which no longer holds ``claim.devices``."""
        del claim
        return None


class DeviceBinder(ControllerComponent[AuthorSettingsT], ABC):
    """Attaches devices that have ``binding_conditions``; each method may be ``def`` or ``async def``.

    The scheduler allocates such a device, but does not bind the pod to its node before all conditions are true in
    ``claim.status.devices[]``. It waits at most ten minutes (``bindingTimeout`` of kube-scheduler's DynamicResources
    plugin, 600 s by default). The framework writes the conditions according to the result of :meth:`bind`. This needs
    the gate DRADeviceBindingConditions (on by default from Kubernetes 1.36). Without it the API server drops the
    conditions, and none of these methods is called.

    The methods run in the active replica of the controller. Calls for one device are made one at a time; calls for
    different devices run concurrently, up to 32.
    """

    @abstractmethod
    def bind(self, claim: ObservedClaim, device: ObservedDevice) -> Awaitable[None] | None:
        """Make the device ready for the claim, on ``claim.node`` if the allocation is bound to a node.

        Must be idempotent: a restarted controller calls it again for everything not yet reported, and a claim that was
        released in the meantime may get the same device again. Returning sets all ``binding_conditions`` to true.

        Create devices with ``binds_to_node=True`` if it matters which node that is.

        Raises:
            NotYet: it is not ready yet; called again with increasing delay.
            PermanentError: it cannot succeed: the ``binding_failure_conditions`` become true, with this text. The
                scheduler deallocates the device and tries again, perhaps with the same one: publish a failed device
                with a taint, or stop publishing it.
            Exception: any other is logged and retried, like NotYet.
        """

    def release(self, claim: ObservedClaim, device: ObservedDevice) -> Awaitable[None] | None:
        """Detach a device that a claim no longer has, whether or not :meth:`bind` had finished; a no-op by default.

        Must be idempotent. The device is not bound for another claim before this returns. NotYet and other errors
        are retried; a PermanentError is logged and stops the retries. Releases while no controller runs are reported
        only by :meth:`resume`.
        """
        del claim, device
        return None

    def resume(self, held: Sequence[tuple[ObservedClaim, ObservedDevice]]) -> Awaitable[None] | None:
        """Reconcile when the controller becomes active, before anything is bound: ``held`` is all that claims hold now.

        Any other attached device was released while no controller was running: detach it. A no-op by default. If it
        raises, the error is logged and it is called again.
        """
        del held
        return None


class BoundElsewhere:
    """``Driver(binder=BoundElsewhere())``: a controller outside this driver makes the binding conditions true.

    Devices may then have ``binding_conditions`` and ``binding_failure_conditions``. This driver writes none of them and
    needs no right to: the other controller writes them into ``claim.status.devices[]``, such as that of a fabric. The
    scheduler waits for it at most ten minutes, as for a :class:`DeviceBinder`.
    """


class TaintRule(AuthorModel):
    """A taint for devices of this driver only (``DeviceTaintRule``, KEP-5055).

    Args:
        name: a DNS label, unique in the set. The rule is published as the object ``<name>.<driver>`` while it is in the
            set; a changed rule is updated in place.
        taint: the taint to add. ``NoExecute`` also evicts pods that use the devices and do not tolerate the taint.
        pool: only devices of this pool.
        device: only devices of this name.

    Raises:
        InvalidDevice: a name, key or value violates a rule of the API.
    """

    name: str
    taint: DeviceTaint
    pool: str | None = None
    device: str | None = None

    @model_validator(mode="after")
    def _obeys_the_api(self) -> Self:
        of_spec = [
            replace(error, path=error.path.removeprefix("spec.").removeprefix("deviceSelector."))
            for error in validate_taint_rule(self.to_v1("driver"), AUTHOR_RELEASE)
        ]
        errors = [*label_errors(self.name, "name"), *of_spec]
        if errors:
            raise invalid_device(f"TaintRule {short_repr(self.name)}", errors)
        return self

    def to_v1(self, driver: str) -> v1.DeviceTaintRule:
        """Return the rule as published, without labels and owner."""
        selector = v1.DeviceTaintSelector(driver=driver, pool=self.pool, device=self.device)
        taint = v1.DeviceTaint.model_validate(to_plain(self.taint))
        return v1.DeviceTaintRule(
            metadata=ObjectMeta(name=f"{self.name}.{driver}"),
            spec=v1.DeviceTaintRuleSpec(device_selector=selector, taint=taint),
        )


class TaintRuleSource(ControllerComponent[AuthorSettingsT], ABC):
    """Decides which devices are tainted; the active controller publishes the result as DeviceTaintRules.

    Rules of other users and drivers are never modified. It needs Kubernetes 1.37, or 1.35 with the feature gate
    DRADeviceTaintRules and one of the versions v1beta2 and v1alpha3 of resource.k8s.io enabled.
    """

    @abstractmethod
    def rules(self) -> AsyncIterable[Sequence[TaintRule]] | Iterable[Sequence[TaintRule]]:
        """Yield *complete* sets of rules; write it as an ``async def`` or ``def`` generator.

        Rules missing from a set are deleted; ``yield []`` deletes all. A generator that returns leaves its last set in
        place. It runs in its own thread, so it may block. If it raises, the error is logged, the rules stay, and it is
        restarted after a delay. ``context.rescan()`` restarts it from the beginning.
        """
