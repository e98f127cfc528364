"""Compiled comprehensions: the loops that macros become."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from dra_kit.kubernetes.cel.closures import UNSET, Compile, CompiledNode, Run, VariableScope, as_bool
from dra_kit.kubernetes.cel.costs import LIST_COST
from dra_kit.kubernetes.cel.failures import CompileFailure, CostLimitExceeded, EvaluationFailure, no_such_overload
from dra_kit.kubernetes.cel.tree import CallNode, ComprehensionNode, ListNode
from dra_kit.kubernetes.cel.values import RUNTIME_LIMIT, Frame, MapValue, charge_work, map_key, type_name


def compile_comprehension(node: ComprehensionNode, scope: VariableScope, compile_node: Compile) -> CompiledNode:
    """Compile a macro."""
    if node.is_bind:
        return CompiledNode(_bind(node, scope, compile_node))
    over = compile_node(node.iteration_range, scope).run
    inner = scope.inner()
    inner.declare(node.accumulator)
    bind = _binder(node, inner)
    step = node.step
    assert isinstance(step, CallNode)  # noqa: S101 - so macros are expanded
    match node.macro:
        case "all" | "exists":
            predicate = compile_node(step.arguments[1], inner).run
            return CompiledNode(_quantifier(over, bind, predicate, decisive=node.macro == "exists"))
        case "exists_one":
            return CompiledNode(_exists_one(over, bind, compile_node(step.arguments[0], inner).run))
        case _:
            return CompiledNode(_collection(step, over, bind, inner, compile_node))


_Bind = Callable[[Frame, Any], Iterable[None]]


def _binder(node: ComprehensionNode, scope: VariableScope) -> _Bind:
    """Return a generator function of the entries of a range, which sets the variables and checks the cost."""
    first = scope.declare(node.variable)
    if node.variable2 is None:

        def single(frame: Frame, values: Any) -> Iterable[None]:
            for value in values if type(values) is list else _keys(values):
                frame[first] = value
                yield
                if frame[0] > RUNTIME_LIMIT:
                    raise CostLimitExceeded

        return single
    second = scope.declare(node.variable2)

    def double(frame: Frame, values: Any) -> Iterable[None]:
        entries = enumerate(values) if type(values) is list else [(key, values.find(key)[0]) for key in _keys(values)]
        for frame[first], frame[second] in entries:
            yield
            if frame[0] > RUNTIME_LIMIT:
                raise CostLimitExceeded

    return double


_GO_NAMES: Final = {
    "bool": "types.Bool", "bytes": "types.Bytes", "double": "types.Double", "int": "types.Int",
    "null_type": "types.Null", "string": "types.String", "uint": "types.Uint",
}  # fmt: skip
"""Names of types of values in this error of cel-go."""


def _keys(values: Any) -> Iterable[Any]:
    if isinstance(values, MapValue):
        return values
    name = type_name(values)
    raise EvaluationFailure(f"got '{_GO_NAMES.get(name, name)}', expected iterable type", "no-such-overload")


def _bind(node: ComprehensionNode, scope: VariableScope, compile_node: Compile) -> Run:
    if node.initial.type.kind == "type":
        raise CompileFailure(
            f"program instantiation failed: reference to undefined type: {node.accumulator}", node.place
        )
    initial = compile_node(node.initial, scope).run
    inner = scope.inner()
    position = inner.declare(node.accumulator, initial)
    result = compile_node(node.result, inner).run

    def run(frame: Frame) -> Any:
        outer = frame[position]
        frame[position] = UNSET
        try:
            return result(frame)
        finally:
            frame[position] = outer

    return run


_ALL_COST: Final = 3
_EXISTS_COST: Final = 4


def _quantifier(over: Run, bind: _Bind, predicate: Run, *, decisive: bool) -> Run:
    """Compile ``exists`` (ends with the first true) or ``all`` (with the first false); else errors count."""
    each = _EXISTS_COST if decisive else _ALL_COST

    def run(frame: Frame) -> bool:
        failure: EvaluationFailure | None = None
        decided = False
        for _ in bind(frame, over(frame)):
            if decided:
                # Kubernetes detects it at the next entry
                frame[0] += each - 1
                break
            frame[0] += each
            try:
                value = predicate(frame)
            except EvaluationFailure as error:
                failure = error
                continue
            if value is decisive:
                decided = True
            elif value is not (not decisive):
                failure = no_such_overload()
        frame[0] += 1
        if decided:
            return decisive
        if failure is not None:
            raise failure
        return not decisive

    return run


def _exists_one(over: Run, bind: _Bind, predicate: Run) -> Run:
    def run(frame: Frame) -> bool:
        count = 0
        for _ in bind(frame, over(frame)):
            if as_bool(predicate(frame)):
                frame[0] += 2
                count += 1
        frame[0] += 2
        return count == 1

    return run


def _collection(step: CallNode, over: Run, bind: _Bind, scope: VariableScope, compile_node: Compile) -> Run:
    """Compile ``map``, ``filter`` and the ``transform`` macros: a new list or map."""
    condition = None
    if step.function == "_?_:_":
        condition = compile_node(step.arguments[0], scope).run
        added = step.arguments[1]
        assert isinstance(added, CallNode)  # noqa: S101 - so macros are expanded
        step = added
    if step.function == "cel.@mapInsert":
        return _map_builder(over, bind, condition, [compile_node(part, scope).run for part in step.arguments[1:]])
    appended = step.arguments[1]
    assert isinstance(appended, ListNode)  # noqa: S101 - so macros are expanded
    code = compile_node(appended.elements[0], scope)
    element = code.run
    # a constant list is created once
    cost = 2 if code.constant and not code.cost else 2 + LIST_COST

    def run(frame: Frame) -> list[Any]:
        made: list[Any] = []
        for _ in bind(frame, over(frame)):
            if condition is not None and not as_bool(condition(frame)):
                continue
            frame[0] += cost
            made.append(element(frame))
        frame[0] += 1
        return made

    return run


def _map_builder(over: Run, bind: _Bind, condition: Run | None, parts: list[Run]) -> Run:
    def run(frame: Frame) -> MapValue:
        made = MapValue({})
        for _ in bind(frame, over(frame)):
            if condition is not None and not as_bool(condition(frame)):
                continue
            frame[0] += 2
            if len(parts) == 2:
                _add(frame, made, parts[0](frame), parts[1](frame))
                continue
            entries = parts[0](frame)
            for key in _keys(entries):
                _add(frame, made, key, entries.find(key)[0])
        frame[0] += 1
        return made

    return run


def _add(frame: Frame, into: MapValue, key: Any, value: Any) -> None:
    charge_work(frame, 1)
    wrapped = map_key(key)
    if wrapped in into.items:
        raise EvaluationFailure(f"insert failed: key '{key}' already exists")
    # the map is not visible before the loop ends
    into.items[wrapped] = value
