"""Compiled paths: selections and indices below a variable."""

from __future__ import annotations

from typing import Any, Final

from msgspec import Struct

from dra_kit.kubernetes.cel.closures import UNSET, Compile, CompiledNode, Run, VariableScope
from dra_kit.kubernetes.cel.device import DEVICE_FIELDS, Device
from dra_kit.kubernetes.cel.failures import CompileFailure, EvaluationFailure, no_such_key
from dra_kit.kubernetes.cel.tree import CallNode, IdentNode, SelectNode, SyntaxNode
from dra_kit.kubernetes.cel.values import (
    INPUT,
    MAPS,
    NONE,
    Frame,
    MapValue,
    OptionalValue,
    StringMapValue,
    Uint,
    type_name,
)

_INDEXING: Final = frozenset({"_[_]", "_[?_]", "_?._"})
# Types of keys that cel-go accepts in a selection.
_KEYS: Final = frozenset({str, int, Uint, bool, float})


class _Step(Struct, frozen=True):
    """One step of a path: to a key that is known, or to the one that ``run`` returns."""

    key: Any
    run: Run | None
    optional: bool


def is_path(node: SyntaxNode) -> bool:
    """Return whether a node selects from something, or is a name."""
    return isinstance(node, (IdentNode, SelectNode)) or (isinstance(node, CallNode) and node.function in _INDEXING)


def compile_path(
    node: SyntaxNode, scope: VariableScope, compile_node: Compile, *, charge_root: bool = True
) -> CompiledNode:
    """Compile a name, or a chain of selections.

    Args:
        node: the last selection.
        scope: the variables.
        compile_node: compiles what the path begins with, and keys.
        charge_root: whether the value at the beginning costs one unit; it does not as an index or a branch of ``?:``.
    """
    root, steps, test = _flatten(node, scope, compile_node)
    cost = len(steps) + (1 if charge_root and not test else 0)
    if isinstance(root, IdentNode) and (variable := scope.find(root.name)) is not None:
        return CompiledNode(_variable_path(*variable, steps, cost, test=test))
    if isinstance(root, (IdentNode, SelectNode)):
        name = root.variable if isinstance(root, SelectNode) else root.name.removeprefix(".")
        if name != "device":
            return CompiledNode(_walk(_input_variable(name), steps, cost, test=test))
        if not steps:
            return CompiledNode(_whole_device(cost))
        fast = None if test else _device_path(steps, cost)
        return CompiledNode(fast or _walk(_device, steps, cost, test=test))
    if isinstance(root, CallNode) and root.function == "_?_:_":
        cost -= 1 if charge_root and not test else 0
    return CompiledNode(_walk(compile_node(root, scope).run, steps, cost, test=test))


def _flatten(node: SyntaxNode, scope: VariableScope, compile_node: Compile) -> tuple[SyntaxNode, list[_Step], bool]:
    steps: list[_Step] = []
    test = isinstance(node, SelectNode) and node.test_only
    while True:
        if isinstance(node, SelectNode) and not node.variable and (not node.test_only or (test and not steps)):
            steps.append(_Step(node.field, None, optional=False))
            node = node.operand
        elif isinstance(node, CallNode) and node.function in _INDEXING:
            operand, key = node.arguments
            steps.append(_key_step(key, scope, compile_node, optional=node.function != "_[_]"))
            node = operand
        else:
            return node, steps[::-1], test


def _key_step(key: SyntaxNode, scope: VariableScope, compile_node: Compile, *, optional: bool) -> _Step:
    if is_path(key) and key.type.kind != "type":
        return _Step(None, compile_path(key, scope, compile_node, charge_root=False).run, optional)
    code = compile_node(key, scope)
    if code.constant and not code.cost:
        if type(code.value) not in _KEYS:
            raise CompileFailure(
                f"program instantiation failed: invalid qualifier type: {type_name(code.value)}", key.place
            )
        return _Step(code.value, None, optional)
    return _Step(None, code.run, optional)


def _input_variable(name: str) -> Run:
    """Compile an input variable."""

    def run(frame: Frame) -> Any:
        try:
            return frame[INPUT][name]
        except KeyError:
            raise EvaluationFailure(f"no such attribute(s): {name}") from None

    return run


def _device(frame: Frame) -> Device:
    device: Device = frame[INPUT]
    return device


def _whole_device(cost: int) -> Run:
    """Compile ``device`` as a value, which is a map."""

    def run(frame: Frame) -> Any:
        frame[0] += cost
        return StringMapValue({name: frame[INPUT].field(name) for name in DEVICE_FIELDS})

    return run


def _device_path(steps: list[_Step], cost: int) -> Run | None:
    """Compile common paths without intermediate values; None for other paths."""
    keys = [step.key for step in steps if step.run is None and not step.optional and type(step.key) is str]
    if len(keys) != len(steps) or not keys:
        return None
    if keys == ["driver"]:

        def driver(frame: Frame) -> Any:
            frame[0] += cost
            return frame[2].driver

        return driver
    if len(keys) != 3 or keys[0] not in {"attributes", "capacity"}:
        return None
    _, domain, name = keys
    if keys[0] == "attributes":

        def attribute(frame: Frame) -> Any:
            frame[0] += cost
            try:
                return frame[2].attributes[domain][name]
            except KeyError:
                raise no_such_key(name) from None

        return attribute

    def capacity(frame: Frame) -> Any:
        frame[0] += cost
        try:
            return frame[2].capacity[domain][name]
        except KeyError:
            raise no_such_key(name) from None

    return capacity


def _variable_path(position: int, initial: Run | None, steps: list[_Step], cost: int, *, test: bool) -> Run:
    if initial is None:

        def variable(frame: Frame) -> Any:
            return frame[position]
    else:

        def variable(frame: Frame) -> Any:
            value = frame[position]
            if value is UNSET:
                value = frame[position] = initial(frame)
            return value

    if not steps:

        def run(frame: Frame) -> Any:
            frame[0] += cost
            return variable(frame)

        return run
    if len(steps) == 1 and steps[0].run is None and type(steps[0].key) is str and not steps[0].optional and not test:
        return _one_field(variable, steps[0].key, cost)
    return _walk(variable, steps, cost, test=test)


def _one_field(root: Run, key: str, cost: int) -> Run:
    def run(frame: Frame) -> Any:
        frame[0] += cost
        target = root(frame)
        kind = type(target)
        if kind is StringMapValue or kind is MapValue:
            try:
                return target.items[key]
            except KeyError:
                raise no_such_key(key) from None
        return _follow(frame, target, [_Step(key, None, optional=False)], test=False)

    return run


def _walk(root: Run, steps: list[_Step], cost: int, *, test: bool) -> Run:
    def run(frame: Frame) -> Any:
        frame[0] += cost
        return _follow(frame, root(frame), steps, test=test)

    return run


def _follow(frame: Frame, target: Any, steps: list[_Step], *, test: bool) -> Any:
    optional = type(target) is OptionalValue
    if optional:
        if not target.present:
            return False if test else NONE
        target = target.value
    last = len(steps) - 1
    for position, step in enumerate(steps):
        key = step.key
        if step.run is not None:
            key = step.run(frame)
            if type(key) not in _KEYS:
                raise EvaluationFailure(f"invalid qualifier type: {type_name(key)}", "no-such-overload")
        optional = optional or step.optional
        value, found = _find(target, key, presence=optional or (test and position == last))
        if test and position == last:
            return found
        if not found:
            if optional:
                # unreached steps cost nothing
                frame[0] -= len(steps) - position
                return False if test else NONE
            raise no_such_key(key)
        target = value
    return OptionalValue(target) if optional else target


def _find(target: Any, key: Any, *, presence: bool) -> tuple[Any, bool]:
    kind = type(target)
    if kind in MAPS:
        found: tuple[Any, bool] = target.find(key)
        return found
    if kind is Device:
        return target.field(key), True
    if kind is list:
        position = _list_index(key)
        if 0 <= position < len(target):
            return target[position], True
        if presence:
            return None, False
        raise EvaluationFailure(f"index out of bounds: {position}", "index")
    return None, False


def _list_index(key: Any) -> int:
    if type(key) is int or type(key) is Uint:
        return int(key)
    if type(key) is float and key.is_integer():
        return int(key)
    raise EvaluationFailure(f"unsupported index type '{type_name(key)}' in list", "no-such-overload")
