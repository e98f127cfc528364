"""Which devices a choice may have at all, whatever else is in use: selectors and node scope."""

from __future__ import annotations

from collections.abc import Iterable

from dra_kit.allocator.cluster.attributes import published
from dra_kit.allocator.cluster.devices import AdvertisedDevice
from dra_kit.allocator.cluster.nodes import Node, node_matches
from dra_kit.allocator.gates import Gates
from dra_kit.allocator.requests.requests import Choice
from dra_kit.allocator.selectors.expressions import Evaluator
from dra_kit.errors import AllocationError, CelCompileError, CelRuntimeError
from dra_kit.resource.v1 import DeviceAttribute


class Selection:
    """Decides for one node which devices match a choice, lazily: only devices that are asked for are evaluated.

    Args:
        node: the node.
        gates: of the scheduler.
        evaluator: of CEL.
    """

    def __init__(self, node: Node, gates: Gates, evaluator: Evaluator) -> None:
        self._node = node
        self._gates = gates
        self._sees_sharing = gates.variant.knows_sharing
        self._evaluator = evaluator

    def matches(self, choice: Choice, device: AdvertisedDevice) -> bool:
        """Whether the class's selectors, then the request's, and the device's node scope allow it.

        Raises:
            AllocationError: ``cel-compile``, ``cel-runtime``, ``node-selector-invalid``.
        """
        if device.device.binding_conditions and not self._gates.device_binding_and_status:
            return False
        where = f"class {choice.device_class.metadata.name}"
        if not self._all_true(choice, device, choice.class_selectors, where):
            return False
        if choice.selectors and not self._all_true(choice, device, choice.selectors, f"claim {choice.claim}"):
            return False
        if not device.spec.per_device_node_selection:
            return True
        try:
            return node_matches(self._node, *device.node_scope)
        except ValueError as error:
            raise _error(f"device {device.id}: {error}", choice, device, kind="node-selector-invalid") from error

    def attribute(self, choice: Choice, device: AdvertisedDevice, name: str) -> DeviceAttribute | None:
        """Return the attribute that constraints see: a derived one of the choice before the device's own.

        Raises:
            AllocationError: ``derived-compile``, ``derived-runtime``.
        """
        expression = choice.derived.get(name)
        if expression is None:
            return published(device, name)
        try:
            return self._evaluator.derive(expression, device)
        except CelCompileError as error:
            text = f"compile derived attribute {name} failed: {error}"
            raise _error(text, choice, device, kind="derived-compile") from error
        except CelRuntimeError as error:
            text = f"evaluate derived attribute {name} on device {device.id} failed: {error}"
            raise _error(text, choice, device, kind="derived-runtime") from error

    def _all_true(self, choice: Choice, device: AdvertisedDevice, expressions: Iterable[str], where: str) -> bool:
        for index, expression in enumerate(expressions):
            try:
                if not self._evaluator.selects(expression, device, sees_sharing=self._sees_sharing):
                    return False
            except CelCompileError as error:
                text = f"{where}: selector #{index}: CEL compile error: {error}"
                raise _error(text, choice, device, kind="cel-compile") from error
            except CelRuntimeError as error:
                text = f"{where}: selector #{index} on device {device.id}: CEL runtime error: {_with_hint(error)}"
                raise _error(text, choice, device, kind="cel-runtime") from error
        return True


def _error(text: str, choice: Choice, device: AdvertisedDevice, *, kind: str) -> AllocationError:
    return AllocationError(
        text,
        kind=kind,
        claim=choice.claim,
        request=choice.name,
        device_class=choice.device_class.metadata.name,
        device=str(device.id),
    )


def _with_hint(error: CelRuntimeError) -> str:
    """Return the message as the scheduler completes it."""
    if error.kind != "no-such-key":
        return error.message
    return (
        f"{error.message}. consider using CEL optional chaining (.? followed by orValue()) "
        "or guarding the check with has() for optional fields"
    )
