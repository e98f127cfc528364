"""Compiles function calls: which overload a call means is decided by types, here or when it is evaluated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

from dra_kit.cel.cost.charges import SORTED_TYPES, Charge, charge_of
from dra_kit.cel.cost.meter import Frame
from dra_kit.cel.declarations import Overload, all_overloads
from dra_kit.cel.evaluation.code import Code, Guard, Run, classes_of, constant, guard_of
from dra_kit.cel.failure import Failure, Panic, Refusal, no_such_overload
from dra_kit.cel.syntax.tree import Call, Literal, Node
from dra_kit.cel.types import FORMAT, SEMVER, Type
from dra_kit.cel.values import Uint, key_of, type_name

_Invoke: TypeAlias = Callable[..., Any]
"""Takes the frame and the values."""

# Their code looks at the types itself.
_SELF_CHECKED: Final = frozenset({
    "_+_", "_-_", "_*_", "_/_", "_%_", "-_", "_<_", "_<=_", "_>_", "_>=_", "size", "@in", "_in_", "in", "type", "dyn",
    "sort", "@sortByAssociatedKeys", "includes",
})  # fmt: skip
# cel-go evaluates these on constants when it makes the program, and refuses it if that fails.
_CONVERSIONS: Final = frozenset({
    "bool", "bytes", "double", "duration", "dyn", "int", "string", "timestamp", "type", "uint",
})  # fmt: skip
# Pure and costly enough to be computed once; what they cost is charged each time all the same.
_FOLDED: Final = frozenset({"string_to_quantity", "string_to_semver", "string_bool_to_semver"})
# cel-go looks at this argument for the cost even if it is an error or of another type, and panics.
_PANICKING: Final[dict[str, tuple[int, type]]] = {
    "list_distinct": (0, list),
    "list_flatten_int": (1, int),
    **{f"list_{name}_sort": (0, list) for name in SORTED_TYPES},
    **{f"list_{name}_sortByAssociatedKeys": (1, list) for name in SORTED_TYPES},
}
_REGEX: Final = frozenset({"matches", "find", "findAll"})
# cel-go has one implementation of these for all their overloads, which does not say what it was called with.
_UNNAMED: Final = frozenset({"matches"})
_SET_TYPES: Final = frozenset({bool, int, Uint, float, str})


def compile_call(node: Call, operands: Sequence[Code]) -> Code:
    """Compile a call of a function that evaluates all of its arguments.

    Raises:
        Refusal: a constant cannot be converted, or is no regular expression.
    """
    overloads = [one for one in all_overloads(node.function) if one.id in node.overloads]
    overloads = [one for one in overloads if one.member == (node.target is not None)]
    only = overloads[0].id if len(overloads) == 1 else ""
    charge = charge_of(node.function, only)
    if node.function in _REGEX:
        _check_pattern(node, operands[1])
    if node.function == "@in" and only == "in_list" and operands[1].constant:
        member = _set_membership(operands[0], operands[1].value)
        if member is not None:
            return member
    if only in _PANICKING:
        position, expected = _PANICKING[only]
        operands = [*operands]
        operands[position] = Code(_panicking(operands[position].run, expected))
    invoke, guards = _invocation(node, overloads)
    if all(code.constant for code in operands):
        folded = _fold(node, only, operands, invoke=invoke, guards=guards, charge=charge)
        if folded is not None:
            return folded
    if guards is not None:
        return Code(_direct(overloads[0], guards, operands, charge))
    return Code(_general(invoke, [code.run for code in operands], charge))


def _panicking(operand: Run, expected: type) -> Run:
    def run(frame: Frame) -> Any:
        try:
            value = operand(frame)
        except Failure as failure:
            raise Panic(failure.message) from None
        if type(value) is not expected:
            raise Panic(f"{type_name(value)} is not {expected.__name__}")
        return value

    return run


def _check_pattern(node: Call, pattern: Code) -> None:
    if pattern.constant and type(pattern.value) is str:
        from dra_kit.cel.functions.regex import compile_pattern  # few expressions have one

        try:
            compile_pattern(pattern.value)
        except Failure as failure:
            raise Refusal(f"program instantiation failed: {failure.message}", node.place) from None


def _fold(
    node: Call,
    only: str,
    operands: Sequence[Code],
    *,
    invoke: _Invoke,
    guards: list[Guard | None] | None,
    charge: int | Charge,
) -> Code | None:
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
    except Failure as failure:
        if converts:
            raise Refusal(f"program instantiation failed: {failure.message}", node.place) from None
        return None
    if converts:
        return constant(result)
    cost = charge if isinstance(charge, int) else charge(values, result)
    return constant(result, cost + sum(code.cost for code in operands))


def _set_membership(element: Code, values: list[Any]) -> Code | None:
    """Compile ``x in ["a", "b"]`` with a hash table; None if a value cannot be hashed."""
    if not values:
        return constant(value=False)
    if any(type(value) not in _SET_TYPES for value in values):
        return None
    known = frozenset(map(key_of, values))
    run_element = element.run
    unhashable = classes_of(SEMVER) | classes_of(FORMAT) | {bytes}

    def run(frame: Frame) -> bool:
        value = run_element(frame)
        kind = type(value)
        if kind in _SET_TYPES:
            return key_of(value) in known
        if kind in unhashable:
            raise Panic(f"hash of unhashable type {type_name(value)}")
        return False

    return Code(run)


def _invocation(node: Call, overloads: list[Overload]) -> tuple[_Invoke, list[Guard | None] | None]:
    """Return how the function is called, and the tests of its arguments; None if ``invoke`` makes the tests."""
    if len(overloads) == 1 or node.function in _SELF_CHECKED:
        only = overloads[0]
        if node.function in _SELF_CHECKED:
            unguarded: list[Guard | None] = [None] * len(node.operands)
            return _with_frame(only), unguarded
        guards = [
            None if _is_certain(operand, declared) else guard_of(declared)
            for operand, declared in zip(node.operands, only.arguments, strict=True)
        ]
        return _with_frame(only), guards
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


def _is_certain(node: Node, declared: Type) -> bool:
    """Return whether a value always has the declared type: it is a constant, or made by a function of that type."""
    if isinstance(node, Literal):
        return node.value is not None  # null fits many types, and is of none of them
    if not isinstance(node, Call) or len(node.overloads) != 1 or declared.parameters:
        return False
    made = [one for one in all_overloads(node.function) if one.id == node.overloads[0]]
    return bool(made) and made[0].result == declared and made[0].compute is not None


def _direct(overload: Overload, guards: list[Guard | None], operands: Sequence[Code], charge: int | Charge) -> Run:
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


def _with_constant(compute: Callable[..., Any], target: Type | None, left: Run, right: Code, cost: int) -> Run:
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
