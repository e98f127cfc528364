"""Compiled nodes: closures of function calls, with guards, constants and charges, and of paths below a variable."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Final, TypeAlias

from msgspec import Struct

from dra_kit.kubernetes.cel.costs import SORTED_TYPES, Charge, call_charge
from dra_kit.kubernetes.cel.device import DEVICE_FIELDS, Device
from dra_kit.kubernetes.cel.environment import all_functions
from dra_kit.kubernetes.cel.failures import (
    CompileFailure,
    EvaluationFailure,
    EvaluatorPanic,
    no_such_key,
    no_such_overload,
)
from dra_kit.kubernetes.cel.functions.quantity_semver import BY_RELEASE, quantity_overloads
from dra_kit.kubernetes.cel.functions.strings import compile_pattern
from dra_kit.kubernetes.cel.tree import CallNode, IdentNode, LiteralNode, SelectNode, SyntaxNode
from dra_kit.kubernetes.cel.types import FORMAT, SEMVER, Overload, Type
from dra_kit.kubernetes.cel.values import (
    INPUT,
    MAPS,
    NONE,
    RUNTIME_TYPES,
    Frame,
    MapValue,
    OptionalValue,
    StringMapValue,
    Uint,
    map_key,
    type_name,
)
from dra_kit.kubernetes.release import KubernetesVersion

_Invoke: TypeAlias = Callable[..., Any]
"""Takes the frame and the values."""
# These functions check the types themselves.
_SELF_CHECKED: Final = frozenset({
    "_+_", "_-_", "_*_", "_/_", "_%_", "-_", "_<_", "_<=_", "_>_", "_>=_", "size", "@in", "_in_", "in", "type", "dyn",
    "sort", "@sortByAssociatedKeys", "includes",
})  # fmt: skip
# cel-go evaluates these on constants when it creates the program, and rejects the program if that fails.
_CONVERSIONS: Final = frozenset({
    "bool", "bytes", "double", "duration", "dyn", "int", "string", "timestamp", "type", "uint",
})  # fmt: skip
# Expensive pure functions, computed once for constants; the cost is charged each time.
_FOLDED: Final = frozenset({"string_to_quantity", "string_to_semver", "string_bool_to_semver"})
# cel-go reads this argument for the cost even if it is an error or has another type, and panics.
_PANICKING: Final[dict[str, tuple[int, type]]] = {
    "list_distinct": (0, list),
    "list_flatten_int": (1, int),
    **{f"list_{name}_sort": (0, list) for name in SORTED_TYPES},
    **{f"list_{name}_sortByAssociatedKeys": (1, list) for name in SORTED_TYPES},
}
_REGEX: Final = frozenset({"matches", "find", "findAll"})
# cel-go has one implementation for all overloads of these, whose error does not name the arguments.
_UNNAMED: Final = frozenset({"matches"})
_SET_TYPES: Final = frozenset({bool, int, Uint, float, str})


def compile_call(node: CallNode, operands: Sequence[CompiledNode], version: KubernetesVersion) -> CompiledNode:
    """Compile a call of a function that evaluates all of its arguments, for a release that evaluates it.

    Raises:
        CompileFailure: a constant cannot be converted, or is not a regular expression.
    """
    overloads = [
        one
        for one in quantity_overloads(node.function, version) or all_functions()[node.function]
        if one.id in node.overloads and one.member == (node.target is not None)
    ]
    only = overloads[0].id if len(overloads) == 1 else ""
    charge = call_charge(node.function, only)
    if node.function in _REGEX:
        _check_pattern(node, operands[1])
    if node.function == "@in" and only == "in_list" and operands[1].constant:
        member = _set_membership(operands[0], operands[1].value)
        if member is not None:
            return member
    if only in _PANICKING:
        position, expected = _PANICKING[only]
        operands = [*operands]
        operands[position] = CompiledNode(_panicking(operands[position].run, expected))
    invoke, guards = _invocation(node, overloads)
    if all(code.constant for code in operands):
        folded = _fold(node, only, operands, invoke=invoke, guards=guards, charge=charge)
        if folded is not None:
            return folded
    if guards is not None:
        return CompiledNode(_direct(overloads[0], guards, operands, charge))
    return CompiledNode(_general(invoke, [code.run for code in operands], charge))


def _panicking(operand: Run, expected: type) -> Run:
    def run(frame: Frame) -> Any:
        try:
            value = operand(frame)
        except EvaluationFailure as failure:
            raise EvaluatorPanic(failure.message) from None
        if type(value) is not expected:
            raise EvaluatorPanic(f"{type_name(value)} is not {expected.__name__}")
        return value

    return run


def _check_pattern(node: CallNode, pattern: CompiledNode) -> None:
    if pattern.constant and type(pattern.value) is str:
        try:
            compile_pattern(pattern.value)
        except EvaluationFailure as failure:
            raise CompileFailure(f"program instantiation failed: {failure.message}", node.place) from None


def _fold(
    node: CallNode,
    only: str,
    operands: Sequence[CompiledNode],
    *,
    invoke: _Invoke,
    guards: Sequence[Guard | None] | None,
    charge: int | Charge,
) -> CompiledNode | None:
    values = tuple(code.value for code in operands)
    converts = node.function in _CONVERSIONS and len(values) == 1 and not operands[0].cost
    if not converts and only not in _FOLDED:
        return None
    try:
        if guards is not None and not all(
            guard is None or guard(one) for guard, one in zip(guards, values, strict=True)
        ):
            raise no_such_overload()
        result = invoke([0, 0], *values)
    except EvaluationFailure as failure:
        if converts:
            raise CompileFailure(f"program instantiation failed: {failure.message}", node.place) from None
        return None
    if converts:
        return constant(result)
    cost = charge if isinstance(charge, int) else charge(values, result)
    return constant(result, cost + sum(code.cost for code in operands))


def _set_membership(element: CompiledNode, values: list[Any]) -> CompiledNode | None:
    """Compile ``x in ["a", "b"]`` with a hash table; None if a value cannot be hashed."""
    if not values:
        return constant(value=False)
    if any(type(value) not in _SET_TYPES for value in values):
        return None
    known = frozenset(map(map_key, values))
    run_element = element.run
    unhashable = classes_of(SEMVER) | classes_of(FORMAT) | {bytes}

    def run(frame: Frame) -> bool:
        value = run_element(frame)
        kind = type(value)
        if kind in _SET_TYPES:
            return map_key(value) in known
        if kind in unhashable:
            raise EvaluatorPanic(f"hash of unhashable type {type_name(value)}")
        return False

    return CompiledNode(run)


def _invocation(node: CallNode, overloads: list[Overload]) -> tuple[_Invoke, Sequence[Guard | None] | None]:
    """Return the code of the function and the guards of its arguments; None if the code has the guards."""
    if node.function in _SELF_CHECKED:
        return _with_frame(overloads[0]), [None] * len(node.operands)
    if len(overloads) == 1:
        guards = [
            None if _is_certain(operand, declared) else guard_of(declared)
            for operand, declared in zip(node.operands, overloads[0].arguments, strict=True)
        ]
        return _with_frame(overloads[0]), guards
    candidates = [(_with_frame(one), [guard_of(declared) for declared in one.arguments]) for one in overloads]
    name = node.function

    def invoke(frame: Frame, *values: Any) -> Any:
        for compute, guards in candidates:
            if all(guard is None or guard(value) for guard, value in zip(guards, values, strict=True)):
                return compute(frame, *values)
        raise no_such_overload(f"{name}({', '.join(map(type_name, values))})")

    return invoke, None


def _with_frame(overload: Overload) -> _Invoke:
    compute = overload.compute
    if compute is None:
        raise AssertionError(overload.id)
    if overload.metered:
        return compute

    def invoke(_: Frame, *values: Any) -> Any:
        return compute(*values)

    return invoke


def _is_certain(node: SyntaxNode, declared: Type) -> bool:
    """Return whether a value always has the declared type: constants and results of functions."""
    if isinstance(node, LiteralNode):
        return node.value is not None  # null fits many types, and is of none of them
    if not isinstance(node, CallNode) or len(node.overloads) != 1 or declared.parameters:
        return False
    made = [one for one in all_functions().get(node.function, ()) if one.id == node.overloads[0]]
    return bool(made) and made[0].result == declared and (made[0].compute is not None or node.function in BY_RELEASE)


def _direct(
    overload: Overload, guards: Sequence[Guard | None], operands: Sequence[CompiledNode], charge: int | Charge
) -> Run:
    """Return the code of a call of one overload."""
    compute = overload.compute
    assert compute is not None  # noqa: S101 - _with_frame has looked
    runs = [code.run for code in operands]
    if not overload.metered and isinstance(charge, int):
        if len(operands) == 1:
            return _unary(compute, guards[0], runs[0], charge)
        if len(operands) == 2 and guards[1] is None and operands[1].constant:
            target = overload.arguments[0] if guards[0] is not None else None
            return _with_constant(compute, target, runs[0], operands[1], charge)
    invoke = _with_frame(overload)
    tested = [(position, guard) for position, guard in enumerate(guards) if guard is not None]
    if not tested:
        return _general(invoke, runs, charge)

    named = overload.function not in _UNNAMED

    def checked(frame: Frame, *values: Any) -> Any:
        for position, guard in tested:
            if not guard(values[position]):
                shown = f"{overload.function}({', '.join(map(type_name, values))})"
                raise no_such_overload(shown if named else "")
        return invoke(frame, *values)

    return _general(checked, runs, charge)


def _unary(compute: Callable[..., Any], guard: Guard | None, operand: Run, cost: int) -> Run:
    def run(frame: Frame) -> Any:
        value = operand(frame)
        if guard is not None and not guard(value):
            raise no_such_overload()
        frame[0] += cost
        return compute(value)

    return run


def _with_constant(compute: Callable[..., Any], target: Type | None, left: Run, right: CompiledNode, cost: int) -> Run:
    value, total = right.value, cost + right.cost
    if target is None or target.parameters:
        guard = None if target is None else guard_of(target)

        def general(frame: Frame) -> Any:
            given = left(frame)
            if guard is not None and not guard(given):
                raise no_such_overload()
            frame[0] += total
            return compute(given, value)

        return general
    classes = classes_of(target)

    def run(frame: Frame) -> Any:
        given = left(frame)
        if type(given) not in classes:
            raise no_such_overload()
        frame[0] += total
        return compute(given, value)

    return run


def _general(invoke: _Invoke, runs: Sequence[Run], charge: int | Charge) -> Run:
    fixed = charge if isinstance(charge, int) else 0
    computed = None if isinstance(charge, int) else charge

    def run(frame: Frame) -> Any:
        values = [operand(frame) for operand in runs]
        result = invoke(frame, *values)
        frame[0] += fixed if computed is None else computed(tuple(values), result)
        return result

    return run


Run: TypeAlias = Callable[[Frame], Any]
"""Evaluates a subexpression and adds its cost; raises EvaluationFailure or CostLimitExceeded."""
Guard: TypeAlias = Callable[[Any], bool]
"""Returns whether a value has the declared type."""


class CompiledNode(Struct, frozen=True):
    """A compiled sub-expression.

    Attributes:
        run: evaluates it.
        constant: whether it is a constant.
        value: the constant, which ``run`` also returns.
        cost: the cost of each use of the constant.
    """

    run: Run
    constant: bool = False
    value: Any = None
    cost: int = 0


def constant(value: Any, cost: int = 0) -> CompiledNode:
    """Return the code of a constant."""

    def run(_: Frame) -> Any:
        return value

    def charged(frame: Frame) -> Any:
        frame[0] += cost
        return value

    return CompiledNode(charged if cost else run, constant=True, value=value, cost=cost)


class VariableScope:
    """The variables in a scope; each has its own position in the frame.

    Attributes:
        version: the release that evaluates the expression.
    """

    __slots__ = ("_positions", "_variables", "version")

    def __init__(
        self, positions: list[int], outer: Mapping[str, tuple[int, Run | None]], version: KubernetesVersion
    ) -> None:
        self.version: KubernetesVersion = version
        self._positions = positions
        self._variables = dict(outer)

    def inner(self) -> VariableScope:
        """Return a nested scope."""
        return VariableScope(self._positions, self._variables, self.version)

    def declare(self, name: str, initial: Run | None = None) -> int:
        """Add a variable; one with ``initial`` is computed on first use."""
        position = self._positions[0]
        self._positions[0] += 1
        self._variables[name] = position, initial
        return position

    def find(self, name: str) -> tuple[int, Run | None] | None:
        """Return the position and the initial code of a variable; None if it is not declared."""
        return self._variables.get(name)


UNSET: Final = object()
"""Value of an unused lazy variable in the frame."""
Compile: TypeAlias = Callable[[SyntaxNode, VariableScope], CompiledNode]
"""Compiles any sub-expression."""


@cache
def _classes() -> dict[str, frozenset[type]]:
    all_functions()  # their modules add classes of values
    found: dict[str, set[type]] = {}
    for python, of in RUNTIME_TYPES.items():
        found.setdefault(of.name, set()).add(python)
    return {name: frozenset(classes) for name, classes in found.items()}


def guard_of(declared: Type) -> Guard | None:
    """Return the guard of a type; None if it accepts all values. It checks the first entry of lists and maps."""
    if declared.kind in {"dyn", "any", "param"}:
        return None
    classes = classes_of(declared)
    if declared.kind == "list":
        element = guard_of(declared.parameters[0])
        if element is None:
            return lambda value: type(value) is list
        return lambda value: type(value) is list and (not value or element(value[0]))
    return lambda value: type(value) in classes


def classes_of(declared: Type) -> frozenset[type]:
    """Return the Python classes of the values of a type."""
    return _classes()[declared.name]


def as_bool(value: Any) -> bool:
    """Return a value as a condition.

    Raises:
        EvaluationFailure: it is not bool.
    """
    if value is True or value is False:
        return bool(value)
    raise no_such_overload()


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
                raise frame[2].not_found(domain, name) from None

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
