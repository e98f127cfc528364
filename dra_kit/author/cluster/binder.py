"""``DeviceBinder``: makes devices ready for a claim after they were allocated (binding conditions, KEP-5007)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Sequence

from dra_kit.author.controller_bound import ControllerBound
from dra_kit.author.observing.observed import ObservedClaim, ObservedDevice
from dra_kit.author.type_parameters import AuthorSettingsT


class DeviceBinder(ControllerBound[AuthorSettingsT], ABC):
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
