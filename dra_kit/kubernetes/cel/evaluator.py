"""Evaluator: compiles a checked tree to closures; comprehensions, which macros become, to loops."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from dra_kit.kubernetes.cel.closures import (
    UNSET,
    Compile,
    CompiledNode,
    Run,
    VariableScope,
    as_bool,
    compile_call,
    compile_path,
    constant,
    is_path,
)
from dra_kit.kubernetes.cel.costs import LIST_COST, MAP_COST, STRUCT_COST, equality_cost
from dra_kit.kubernetes.cel.environment import TYPE_NAMES
from dra_kit.kubernetes.cel.failures import (
    CompileFailure,
    CostLimitExceeded,
    EvaluationFailure,
    EvaluatorPanic,
    no_such_overload,
    unusable_attribute,
)
from dra_kit.kubernetes.cel.functions.operators import equal
from dra_kit.kubernetes.cel.tree import (
    CallNode,
    ComprehensionNode,
    IdentNode,
    ListNode,
    LiteralNode,
    MapNode,
    SelectNode,
    StructNode,
    SyntaxNode,
)
from dra_kit.kubernetes.cel.values import (
    COST,
    MESSAGES,
    RUNTIME_LIMIT,
    VARIABLES,
    WORK,
    AttributeMapValue,
    Frame,
    MapValue,
    Meter,
    OptionalValue,
    TypeValue,
    charge_work,
    check_cost,
    map_key,
    type_name,
)
from dra_kit.kubernetes.release import Change, KubernetesVersion

Observer = Callable[[SyntaxNode, Run], Run]
"""May wrap the code of a node."""


class Evaluator:
    """An expression that can be evaluated on devices, or with variables.

    Args:
        root: the checked expression.
        observer: wraps the code of each node, for explanations.
        version: the release that evaluates.

    Raises:
        CompileFailure: a constant cannot be converted or compiled.
    """

    def __init__(self, root: SyntaxNode, observer: Observer | None = None, *, version: KubernetesVersion) -> None:
        self._observer = observer
        positions = [VARIABLES]
        self._run = self._compile(root, VariableScope(positions, {}, version)).run
        self._empty = [None] * (positions[0] - VARIABLES)

    def evaluate(self, given: Any, meter: Meter | None = None) -> tuple[Any, int]:
        """Evaluate for a device, or for variables; return the value, and its cost.

        Args:
            given: the device, or the variables by name.
            meter: receives the cost, even if the evaluation fails; its exceptions end the evaluation.

        Raises:
            EvaluationFailure: the evaluation fails.
        """
        frame: Frame = [0, 0, given, *self._empty]
        try:
            value = self._run(frame)
            check_cost(frame)
        except CostLimitExceeded:
            raise EvaluationFailure("operation cancelled: actual cost limit exceeded", "cost") from None
        except EvaluatorPanic as panic:
            raise EvaluationFailure(panic.message) from None
        except RecursionError:
            raise EvaluationFailure("the expression is nested too deeply to be evaluated here", "cost") from None
        finally:
            if meter is not None:
                meter(frame[COST] + frame[WORK])
        return value, frame[COST]

    def _compile(self, node: SyntaxNode, scope: VariableScope) -> CompiledNode:
        code = self._dispatch(node, scope)
        if self._observer is None:
            return code
        return CompiledNode(self._observer(node, code.run), code.constant, code.value, code.cost)

    def _dispatch(self, node: SyntaxNode, scope: VariableScope) -> CompiledNode:
        if isinstance(node, LiteralNode):
            return constant(node.value)
        if node.type.kind == "type" and isinstance(node, (IdentNode, SelectNode)) and _is_type_name(node, scope):
            return constant(TypeValue(node.type.parameters[0].name))
        if isinstance(node, IdentNode) and node.type.kind == "type":
            raise CompileFailure(f"program instantiation failed: reference to undefined type: {node.name}", node.place)
        if is_path(node):
            return compile_path(node, scope, self._compile)
        if isinstance(node, ComprehensionNode):
            return compile_comprehension(node, scope, self._compile)
        if isinstance(node, ListNode):
            return self._list(node, scope)
        if isinstance(node, MapNode):
            return self._map(node, scope)
        if isinstance(node, StructNode):
            return self._struct(node, scope)
        assert isinstance(node, CallNode)  # noqa: S101 - no other kinds of nodes exist
        special = _SPECIAL.get(node.function)
        if special is not None:
            return special(self, node, scope)
        return compile_call(node, [self._compile(operand, scope) for operand in node.operands], scope.version)

    def _list(self, node: ListNode, scope: VariableScope) -> CompiledNode:
        codes = [self._compile(element, scope) for element in node.elements]
        runs = [code.run for code in codes]
        if node.optional:
            optional = node.optional

            def with_optional(frame: Frame) -> list[Any]:
                frame[0] += LIST_COST
                made: list[Any] = []
                for position, element in enumerate(runs):
                    value = element(frame)
                    if position not in optional:
                        made.append(value)
                    elif _optional(value).present:
                        made.append(value.value)
                return made

            return CompiledNode(with_optional)
        if all(code.constant and not code.cost for code in codes):
            return constant([code.value for code in codes])

        def run(frame: Frame) -> list[Any]:
            frame[0] += LIST_COST
            return [element(frame) for element in runs]

        return CompiledNode(run)

    def _map(self, node: MapNode, scope: VariableScope) -> CompiledNode:
        codes = [(self._compile(key, scope), self._compile(value, scope)) for key, value in node.entries]
        entries = [(key.run, value.run, position in node.optional) for position, (key, value) in enumerate(codes)]

        def run(frame: Frame) -> MapValue:
            frame[0] += MAP_COST
            made: dict[Any, Any] = {}
            for key_run, value_run, optional in entries:
                key, value = key_run(frame), value_run(frame)
                if optional:
                    if not _optional(value).present:
                        continue
                    value = value.value
                made[map_key(key)] = value
            return MapValue(made)

        if not node.optional and all(one.constant and not one.cost for entry in codes for one in entry):
            try:
                return constant(run([0, 0]))
            except EvaluatorPanic as panic:
                raise CompileFailure(f"program instantiation failed: {panic.message}", node.place) from None
        return CompiledNode(run)

    def _struct(self, node: StructNode, scope: VariableScope) -> CompiledNode:
        make = MESSAGES[node.name.removeprefix(".")].make
        fields = [
            (name, self._compile(value, scope).run, position in node.optional)
            for position, (name, value) in enumerate(node.fields)
        ]

        def run(frame: Frame) -> Any:
            given: dict[str, Any] = {}
            for name, field, optional in fields:
                value = field(frame)
                if not optional:
                    given[name] = value
                elif _optional(value).present:
                    given[name] = value.value
                else:
                    given.pop(name, None)
            frame[0] += STRUCT_COST
            return make(given)

        return CompiledNode(run)

    def _and_or(self, node: CallNode, scope: VariableScope) -> CompiledNode:
        terms = [self._compile(argument, scope).run for argument in node.arguments]
        return CompiledNode(_logical(terms, decisive=node.function == "_||_"))

    def _not(self, node: CallNode, scope: VariableScope) -> CompiledNode:
        operand = self._compile(node.arguments[0], scope).run

        def run(frame: Frame) -> bool:
            value = operand(frame)
            frame[0] += 1
            return not as_bool(value)

        return CompiledNode(run)

    def _conditional(self, node: CallNode, scope: VariableScope) -> CompiledNode:
        condition = self._compile(node.arguments[0], scope).run
        truthy, falsy = (self._branch(branch, scope) for branch in node.arguments[1:])

        def run(frame: Frame) -> Any:
            return truthy(frame) if as_bool(condition(frame)) else falsy(frame)

        return CompiledNode(run)

    def _branch(self, node: SyntaxNode, scope: VariableScope) -> Run:
        if is_path(node) and not (node.type.kind == "type" and _is_type_name(node, scope)):
            run = compile_path(node, scope, self._compile, charge_root=False).run
            return run if self._observer is None else self._observer(node, run)
        return self._compile(node, scope).run

    def _equal(self, node: CallNode, scope: VariableScope) -> CompiledNode:
        left, right = (self._compile(argument, scope) for argument in node.arguments)
        return CompiledNode(_equality(left, right))

    def _not_equal(self, node: CallNode, scope: VariableScope) -> CompiledNode:
        left, right = (self._compile(argument, scope).run for argument in node.arguments)

        def run(frame: Frame) -> bool:
            one, other = left(frame), right(frame)
            frame[0] += equality_cost(one, other)
            try:
                return not equal(frame, one, other)
            except EvaluationFailure:
                # values that cannot be compared differ; only == fails
                return True

        return CompiledNode(run)

    def _or_else(self, node: CallNode, scope: VariableScope) -> CompiledNode:
        """Compile ``or`` and ``orValue``: the right side is evaluated only if it is needed."""
        left, right = (self._compile(operand, scope).run for operand in node.operands)
        unwrap = node.function == "orValue"

        def run(frame: Frame) -> Any:
            optional = left(frame)
            if not _optional(optional).present:
                return right(frame)
            return optional.value if unwrap else optional

        return CompiledNode(run)


_SPECIAL: Final[dict[str, Callable[[Evaluator, CallNode, VariableScope], CompiledNode]]] = {
    "_&&_": Evaluator._and_or,  # noqa: SLF001 - methods of the class above
    "_||_": Evaluator._and_or,  # noqa: SLF001
    "!_": Evaluator._not,  # noqa: SLF001
    "_?_:_": Evaluator._conditional,  # noqa: SLF001
    "_==_": Evaluator._equal,  # noqa: SLF001
    "_!=_": Evaluator._not_equal,  # noqa: SLF001
    "or": Evaluator._or_else,  # noqa: SLF001
    "orValue": Evaluator._or_else,  # noqa: SLF001
}


def _is_type_name(node: SyntaxNode, scope: VariableScope) -> bool:
    names: list[str] = []
    while isinstance(node, SelectNode):
        names.append(node.field)
        node = node.operand
    if not isinstance(node, IdentNode) or scope.find(node.name) is not None:
        return False
    return ".".join([node.name.removeprefix("."), *reversed(names)]) in TYPE_NAMES


def _optional(value: Any) -> OptionalValue:
    if isinstance(value, OptionalValue):
        return value
    raise no_such_overload()


def _logical(terms: list[Run], *, decisive: bool) -> Run:
    """Compile ``&&`` (decided by false) or ``||`` (decided by true): a decision absorbs errors on either side."""
    other = not decisive

    def run(frame: Frame) -> bool:
        failure: EvaluationFailure | None = None
        for term in terms:
            try:
                value = term(frame)
            except EvaluationFailure as error:
                failure = failure or error
                continue
            if value is decisive:
                return not other
            if value is not other:
                failure = failure or no_such_overload()
        if failure is not None:
            raise failure
        return other

    return run


def _equality(left: CompiledNode, right: CompiledNode) -> Run:
    if right.constant and type(right.value) is str and not right.cost:
        return _equals_text(left.run, right.value)
    left_run, right_run = left.run, right.run

    def run(frame: Frame) -> bool:
        one, other = left_run(frame), right_run(frame)
        frame[0] += equality_cost(one, other)
        return equal(frame, one, other)

    return run


def _equals_text(left: Run, text: str) -> Run:
    length = len(text)

    def run(frame: Frame) -> bool:
        value = left(frame)
        if isinstance(value, str):
            size = len(value)
            frame[0] += ((size if size < length else length) + 9) // 10  # noqa: FURB136 - min() is slower
            return value == text
        frame[0] += equality_cost(value, text)
        return equal(frame, value, text)

    return run


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
            return CompiledNode(_exists_one(over, bind, compile_node(step.arguments[0], inner).run, scope.version))
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

    def unusable(frame: Frame) -> Any:
        raise unusable_attribute(str(frame[first]))

    second = scope.declare(node.variable2, unusable)

    def double(frame: Frame, values: Any) -> Iterable[None]:
        entries: Iterable[tuple[Any, Any]]
        if type(values) is list:
            entries = enumerate(values)
        elif type(values) is AttributeMapValue:
            entries = [(key, values.items.get(key, UNSET)) for key in values]
        else:
            entries = [(key, values.find(key)[0]) for key in _keys(values)]
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


def _exists_one(over: Run, bind: _Bind, predicate: Run, version: KubernetesVersion) -> Run:
    text_is_empty = version.has(Change.EMPTY_TEXT_HAS_NO_ITEMS)

    def run(frame: Frame) -> bool:
        count = 0
        values = over(frame)
        for _ in bind(frame, [] if text_is_empty and values == "" else values):
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
