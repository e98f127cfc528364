"""Compiled selectors and derived attributes, and the estimate of an expression's worst-case cost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

from msgspec import Struct

from dra_kit.errors import CelCompileError, CelRuntimeError
from dra_kit.kubernetes.cel import types
from dra_kit.kubernetes.cel.checker import check, check_literals
from dra_kit.kubernetes.cel.costs import (
    LIST_COST,
    MAP_COST,
    MAX,
    NOTHING,
    NOWHERE,
    ONE,
    STRUCT_COST,
    UNKNOWN,
    CallEstimate,
    CostBounds,
    Operand,
    SizePath,
    estimate_call,
    exact_bounds,
    size_at,
)
from dra_kit.kubernetes.cel.device import Device
from dra_kit.kubernetes.cel.environment import STORED, DeviceEnvironment
from dra_kit.kubernetes.cel.evaluator import Evaluator
from dra_kit.kubernetes.cel.failures import CompileFailure, EvaluationFailure
from dra_kit.kubernetes.cel.functions.quantity_semver import Semver
from dra_kit.kubernetes.cel.parser import parse
from dra_kit.kubernetes.cel.tree import (
    CallNode,
    ComprehensionNode,
    DeviceRead,
    IdentNode,
    ListNode,
    LiteralNode,
    MapNode,
    SelectNode,
    StructNode,
    SyntaxNode,
    device_reads,
)
from dra_kit.kubernetes.cel.types import Type, optional_content
from dra_kit.kubernetes.cel.values import Meter, type_name
from dra_kit.kubernetes.release import Change, KubernetesVersion
from dra_kit.kubernetes.values.semver import Version


class _Entries(Struct, frozen=True):
    """Sizes of the keys and values of a list or map."""

    kind: str
    key: CostBounds
    value: CostBounds


class _Variable(Struct, frozen=True):
    path: SizePath
    size: CostBounds | None
    entries: _Entries | None


def estimate(root: SyntaxNode, version: KubernetesVersion) -> int:
    """Return the highest cost of an evaluation in a release; 2**64 - 1 if nothing bounds it."""
    return _Estimator(version).cost(root).high


_SCALARS: Final = frozenset({"bool", "double", "duration", "int", "timestamp", "uint"})
_CONCATENATIONS: Final = frozenset({"add_string", "add_bytes", "add_list"})
_FIELDS_COST_KINDS: Final = frozenset({"map", "struct", "param"})


class _Estimator:
    def __init__(self, version: KubernetesVersion) -> None:
        self._version = version
        self._paths: dict[int, SizePath] = {}
        self._sizes: dict[int, CostBounds] = {}
        self._entries: dict[int, _Entries] = {}
        self._variables: dict[str, list[_Variable]] = {}
        self._handlers: dict[type[SyntaxNode], Callable[[Any], CostBounds]] = {
            LiteralNode: lambda _: NOTHING,
            IdentNode: self._ident,
            SelectNode: self._select,
            CallNode: self._call,
            ListNode: self._list,
            MapNode: self._map,
            StructNode: self._struct,
            ComprehensionNode: self._comprehension,
        }

    def cost(self, node: SyntaxNode) -> CostBounds:
        return self._handlers[type(node)](node)

    def _ident(self, node: IdentNode) -> CostBounds:
        if node.type.kind != "type":
            variable = self._variable(node.name)
            self._paths[id(node)] = SizePath.of(node.name.removeprefix(".")) if variable is None else variable.path
        return ONE

    def _variable(self, name: str) -> _Variable | None:
        stack = self._variables.get(name)
        return stack[-1] if stack else None

    def _select(self, node: SelectNode) -> CostBounds:
        if node.type.kind == "type" and not isinstance(node.operand, CallNode):
            return ONE
        cost = self.cost(node.operand)
        if node.test_only:
            return cost
        if node.operand.type.kind in _FIELDS_COST_KINDS:
            cost = cost.plus(ONE)
        self._paths[id(node)] = self._path(node.operand).below(node.field)
        return cost

    def _path(self, node: SyntaxNode) -> SizePath:
        if isinstance(node, IdentNode):
            variable = self._variable(node.name)
            if variable is not None:
                return variable.path
        return self._paths.get(id(node), NOWHERE)

    def _operand(self, node: SyntaxNode) -> Operand:
        return Operand(node, node.type, self._path(node), self._size(node))

    def _call(self, node: CallNode) -> CostBounds:
        if node.function == "dyn":
            cost = self.cost(node.arguments[0]).plus(ONE)
            self._copy_sizes(node, node.arguments[0])
            return cost
        costs: list[CostBounds] = []
        arguments: list[Operand] = []
        for argument in node.arguments:
            costs.append(self.cost(argument))
            arguments.append(self._operand(argument))
        total = NOTHING
        target: Operand | None = None
        if node.target is not None:
            total = self.cost(node.target)
            target = self._operand(node.target)
        cost, size = CostBounds(MAX, 0), None
        for overload in node.overloads:
            estimated = self._overload(node, overload, target, arguments, costs)
            cost = cost.union(estimated.cost)
            if estimated.size is not None:
                size = estimated.size if size is None else size.union(estimated.size)
            if overload in {"index_list", "index_map"}:
                entries = self._entries_of(node.arguments[0])
                size = None if entries is None else entries.value
                step = "@items" if overload == "index_list" else "@values"
                self._paths[id(node)] = self._path(node.arguments[0]).below(step)
            if size is None:
                size = self._size(node)
        if size is not None:
            self._sizes[id(node)] = size
        return total.plus(cost)

    def _overload(
        self, node: CallNode, overload: str, target: Operand | None, arguments: list[Operand], costs: list[CostBounds]
    ) -> CallEstimate:
        before = NOTHING
        for cost in costs:
            before = before.plus(cost)
        match overload:
            case "logical_or" | "logical_and":
                return CallEstimate(CostBounds(costs[0].low, before.high))
            case "conditional":
                return self._conditional(node, arguments, costs)
            case _:
                pass
        estimated = estimate_call(node.function, overload, target, arguments, self._version)
        if overload in _CONCATENATIONS:
            self._merge_entries(node, *node.arguments)
        return CallEstimate(estimated.cost.plus(before), estimated.size)

    def _conditional(self, node: CallNode, arguments: list[Operand], costs: list[CostBounds]) -> CallEstimate:
        self._merge_entries(node, node.arguments[1], node.arguments[2])
        size = arguments[1].size_or_unknown.union(arguments[2].size_or_unknown)
        return CallEstimate(costs[0].plus(costs[1].union(costs[2])), size)

    def _merge_entries(self, node: SyntaxNode, one: SyntaxNode, other: SyntaxNode) -> None:
        left, right = self._entries_of(one), self._entries_of(other)
        if left is not None and right is not None:
            self._entries[id(node)] = _Entries(left.kind, left.key.union(right.key), left.value.union(right.value))

    def _list(self, node: ListNode) -> CostBounds:
        cost, size = exact_bounds(LIST_COST), CostBounds(MAX if node.elements else 0, 0)
        for element in node.elements:
            cost = cost.plus(self.cost(element))
            size = size.union(self._size(element) or UNKNOWN)
        self._entries[id(node)] = _Entries("list", ONE, size)
        return cost

    def _map(self, node: MapNode) -> CostBounds:
        lowest = MAX if node.entries else 0
        cost, keys, values = exact_bounds(MAP_COST), CostBounds(lowest, 0), CostBounds(lowest, 0)
        for key, value in node.entries:
            cost = cost.plus(self.cost(key)).plus(self.cost(value))
            keys = keys.union(self._size(key) or UNKNOWN)
            values = values.union(self._size(value) or UNKNOWN)
        self._entries[id(node)] = _Entries("map", keys, values)
        return cost

    def _struct(self, node: StructNode) -> CostBounds:
        cost = exact_bounds(STRUCT_COST)
        for _, value in node.fields:
            cost = cost.plus(self.cost(value))
        return cost

    def _comprehension(self, node: ComprehensionNode) -> CostBounds:
        cost = self.cost(node.iteration_range).plus(self.cost(node.initial))
        accumulator = _Variable(self._path(node.initial), self._size(node.initial), self._entries_of(node.initial))
        self._push(node.accumulator, accumulator)
        if node.is_bind:
            cost = cost.plus(self.cost(node.result))
            self._variables[node.accumulator].pop()
            self._copy_sizes(node, node.result)
            return cost
        self._push_iteration(node)
        loop = self.cost(node.condition).plus(self.cost(node.step))
        self._variables[node.variable].pop()
        if node.variable2 is not None:
            self._variables[node.variable2].pop()
        cost = cost.plus(self.cost(node.result))
        self._variables[node.accumulator].pop()
        count = self._size(node.iteration_range) or UNKNOWN
        cost = cost.plus(count.times(loop))
        if isinstance(node.initial, LiteralNode):
            size = self._size(node.initial)
            if size is not None:
                self._sizes[id(node)] = size
        else:
            self._sizes[id(node)] = count
            entries = self._entries_of(node.step)
            if entries is not None:
                self._entries[id(node)] = entries
        return cost

    def _push(self, name: str, variable: _Variable) -> None:
        self._variables.setdefault(name, []).append(variable)

    def _push_iteration(self, node: ComprehensionNode) -> None:
        over = node.iteration_range
        entries, path = self._entries_of(over), self._path(over)
        is_list = (over.type.kind if entries is None else entries.kind) == "list"
        key, value = ("@indices", "@items") if is_list else ("@keys", "@values")
        key_size, value_size = (None, None) if entries is None else (entries.key, entries.value)
        if node.variable2 is not None:
            self._push(node.variable, _Variable(path.below(key), key_size, None))
            self._push(node.variable2, _Variable(path.below(value), value_size, None))
        elif is_list:
            self._push(node.variable, _Variable(path.below(value), value_size, None))
        else:
            self._push(node.variable, _Variable(path.below(key), key_size, None))

    def _copy_sizes(self, node: SyntaxNode, source: SyntaxNode) -> None:
        size, entries = self._size(source), self._entries_of(source)
        if size is not None:
            self._sizes[id(node)] = size
        if entries is not None:
            self._entries[id(node)] = entries

    def _size(self, node: SyntaxNode) -> CostBounds | None:
        found = self._sizes.get(id(node))
        if found is not None:
            return found
        found = _literal_size(node)
        if found is not None:
            return found
        found = size_at(self._path(node).names)
        if found is not None:
            self._sizes[id(node)] = found
            return found
        if _is_scalar(node.type) or (node.type.kind == "type" and self._version.has(Change.TYPES_HAVE_A_SIZE)):
            return ONE
        if isinstance(node, IdentNode):
            variable = self._variable(node.name)
            if variable is not None:
                return variable.size
        return None

    def _entries_of(self, node: SyntaxNode) -> _Entries | None:
        found = self._entries.get(id(node))
        if found is None and isinstance(node, IdentNode):
            variable = self._variable(node.name)
            return None if variable is None else variable.entries
        return found


def _literal_size(node: SyntaxNode) -> CostBounds | None:
    if isinstance(node, LiteralNode):
        return exact_bounds(len(node.value) if isinstance(node.value, (str, bytes)) else 1)
    if isinstance(node, ListNode):
        return exact_bounds(len(node.elements))
    return exact_bounds(len(node.entries)) if isinstance(node, MapNode) else None


def _is_scalar(of: Type) -> bool:
    content = optional_content(of)
    return _is_scalar(content) if content is not None else of.kind in _SCALARS


MAX_LENGTH: Final = 10 * 1024
"""The longest expression of a selector or derived attribute in bytes (resource.k8s.io/v1)."""
MAX_COST: Final = 1_000_000
"""The highest estimated cost that an API server admits, and the limit of the cost of an evaluation."""
DerivedValue: TypeAlias = "bool | int | str | Version | list[bool] | list[int] | list[str] | list[Version]"
"""The value of a derived attribute; the empty list has no type."""


class Expression:
    """A compiled expression on devices.

    Attributes:
        text: the expression.
        environment: the environment of the compilation.
        cost: estimate of the highest cost of an evaluation, in Kubernetes' units; 2**64 - 1 if it has no bound.
        root: its checked syntax tree, with positions in the text.
        reads: the attributes, capacities and fields of a device that it can read; devices that are equal there have
            the same result. None if the text does not determine them.
    """

    def __init__(self, text: str, environment: DeviceEnvironment, *, derived: bool) -> None:
        self.text = text
        self.environment = environment
        try:
            self.root: SyntaxNode = _checked(text, environment, derived=derived)
            self._evaluator = Evaluator(self.root, version=environment.version)
            self.cost: int = estimate(self.root, environment.version)
            self.reads: tuple[DeviceRead, ...] | None = device_reads(self.root)
        except CompileFailure as refusal:
            raise compile_error(text, refusal) from None
        except RecursionError:
            raise compile_error(text, CompileFailure("the expression is nested too deeply", None)) from None

    @property
    def is_admitted(self) -> bool:
        """Whether the estimated cost is low enough for an API server to accept the expression."""
        return self.cost <= MAX_COST

    def evaluate(self, device: Device) -> tuple[Any, int]:
        """Return the value of the expression for a device, as this package represents it, and the cost.

        Raises:
            CelRuntimeError: the evaluation fails.
        """
        try:
            return self._evaluator.evaluate(device)
        except EvaluationFailure as failure:
            raise CelRuntimeError(failure.message, kind=failure.kind, key=failure.key) from None


class Selector(Expression):
    """A CEL selector of a request or class; made by ``compile_selector``."""

    def matches(self, device: Device, meter: Meter | None = None) -> bool:
        """Return whether it selects a device; ``meter`` receives the cost.

        Raises:
            CelRuntimeError: the evaluation fails, costs too much, or its result is not bool.
        """
        try:
            value, _ = self._evaluator.evaluate(device, meter)
        except EvaluationFailure as failure:
            raise CelRuntimeError(failure.message, kind=failure.kind, key=failure.key) from None
        if value is True or value is False:
            return bool(value)
        raise CelRuntimeError(f"CEL result of type {type_name(value)} could not be converted to bool", kind="result")


class DerivedExpression(Expression):
    """An expression of a derived attribute (KEP-6080); made by ``compile_derived``."""

    def value(self, device: Device) -> DerivedValue:
        """Return the value of the attribute for a device.

        Raises:
            CelRuntimeError: the evaluation fails, or the value is not valid for an attribute.
        """
        value, _ = self.evaluate(device)
        if type(value) is not list:
            scalar: DerivedValue = _attribute(value)
            return scalar
        made: list[Any] = []
        for position, element in enumerate(value):
            if type(element) is not type(value[0]):
                raise CelRuntimeError(
                    f"expected list element at index {position} to be {type_name(value[0])}, got {type_name(element)}",
                    kind="result",
                )
            made.append(_attribute(element, "list element"))
        return made


def _attribute(value: Any, what: str = "CEL return") -> Any:
    if type(value) in {bool, int, str}:
        return value
    if type(value) is Semver:
        return value.version
    raise CelRuntimeError(f"unsupported {what} type: {type_name(value)}", kind="result")


def compile_selector(text: str, *, environment: DeviceEnvironment = STORED) -> Selector:
    """Compile the expression of a selector.

    An estimated cost above the limit is not an error, because the scheduler accepts such an expression; see
    ``is_admitted``.

    Args:
        text: the expression.
        environment: ``STORED`` as in the scheduler, or ``new()`` as in an API server for new and changed expressions.

    Raises:
        CelCompileError: Kubernetes would not compile it, or it is longer than 10 KiB.
    """
    return Selector(text, environment, derived=False)


def compile_derived(text: str, *, environment: DeviceEnvironment = STORED) -> DerivedExpression:
    """Compile the expression of a derived attribute; arguments and errors are those of ``compile_selector``."""
    return DerivedExpression(text, environment, derived=True)


def _checked(text: str, environment: DeviceEnvironment, *, derived: bool) -> SyntaxNode:
    try:
        length = len(text.encode())
    except UnicodeEncodeError as error:
        raise CompileFailure("the expression is not valid UTF-8", error.start) from None
    if length > MAX_LENGTH:
        raise CompileFailure(f"the expression is longer than {MAX_LENGTH} bytes", None)
    root = parse(text)
    check(root, environment)
    check_literals(root)
    found = root.type
    if derived:
        lists = environment.list_type_attributes or environment.stored
        element = found.parameters[0] if found.kind == "list" and lists else found
        if element not in {types.BOOL, types.INT, types.STRING, types.ANY, types.DYN, types.SEMVER}:
            scalars = "a primitive scalar (string, integer, boolean, semver)"
            raise CompileFailure(
                f"must evaluate to {scalars}{' or a list of these scalars' if lists else ''}, not {found}", None
            )
    elif found not in {types.BOOL, environment.attribute_type}:
        raise CompileFailure(f"must evaluate to bool or the unknown type, not {found}", None)
    return root


def compile_error(text: str, refusal: CompileFailure) -> CelCompileError:
    """Return the public error of a failure, with its line and column."""
    if refusal.position is None:
        return CelCompileError(refusal.message)
    line, column = line_and_column(text, refusal.position)
    message = f"{line}:{column}: {refusal.message}"
    return CelCompileError(message, line=line, column=column, problem=refusal.message)


def line_and_column(text: str, position: int) -> tuple[int, int]:
    """Return line and column of a character, both from 1."""
    before = text[:position]
    return before.count("\n") + 1, position - (before.rfind("\n") + 1) + 1
