"""An expression, its mistakes, and its reads of a device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final, Literal, TypeAlias

from msgspec import Struct

from dra_kit.errors import CelCompileError
from dra_kit.kubernetes.cel.device import Device
from dra_kit.kubernetes.cel.environment import DeviceEnvironment
from dra_kit.kubernetes.cel.failures import CompileFailure
from dra_kit.kubernetes.cel.parser import parse
from dra_kit.kubernetes.cel.program import DerivedExpression, Selector, compile_derived, compile_selector
from dra_kit.kubernetes.cel.tree import (
    CallNode,
    ComprehensionNode,
    IdentNode,
    LiteralNode,
    SelectNode,
    SyntaxNode,
    walk,
)

Kind: TypeAlias = Literal["attributes", "capacity"]
_KINDS: Final[Mapping[str, Kind]] = {"attributes": "attributes", "capacity": "capacity"}
_INDEXING: Final = frozenset({"_[_]", "_[?_]", "_?._"})
Bindings: TypeAlias = Mapping[str, SyntaxNode]


class Read(Struct, frozen=True):
    """A read of a device's attributes or capacity in an expression.

    Attributes:
        kind: the map of the device.
        domain: the key in the map; None if it is computed.
        name: the key in the domain; None if it is computed, or the whole domain is read.
        domain_node: the syntax node of the domain; None for ``device.attributes`` as a whole.
        last: whether the whole domain is read.
        tested: whether it cannot fail: ``has()``, ``in``, ``.?``, ``[?]``.
    """

    kind: Kind
    domain: str | None
    name: str | None
    node: SyntaxNode
    domain_node: SyntaxNode | None
    last: bool
    tested: bool

    def name_span(self, text: str) -> tuple[int, int]:
        """Return the span of the name in the expression, or else of the whole read."""
        node = self.node
        if isinstance(node, SelectNode):
            start = text.find(node.field, node.place, node.end)
            return (start, start + len(node.field)) if start >= 0 else (node.start, node.end)
        if isinstance(node, CallNode) and node.arguments:
            key = node.arguments[0 if node.function == "@in" else -1]
            return key.start, key.end
        return node.start, node.end

    def domain_span(self) -> tuple[int, int]:
        """Return the span of the domain in the expression."""
        node = self.domain_node or self.node
        return node.start, node.end


def reads(expression: ManifestExpression) -> Iterator[Read]:
    """Yield the reads of an expression, in order; of ``a.b.c`` the longest known one."""
    waiting: list[tuple[SyntaxNode, Bindings]] = [] if expression.root is None else [(expression.root, {})]
    while waiting:
        node, bindings = waiting.pop()
        found = read_of(node, bindings)
        if found is not None:
            yield found
            continue
        if isinstance(node, ComprehensionNode) and node.is_bind:
            waiting.append((node.result, {**bindings, node.accumulator: node.initial}))
            if read_of(node.initial, bindings) is None:
                waiting.append((node.initial, bindings))
            continue
        waiting += [(child, bindings) for child in reversed(list(node.children()))]


def read_of(node: SyntaxNode, bindings: Bindings | None = None) -> Read | None:
    """Return the read of a node; None if it is not one."""
    bindings = bindings or {}
    if isinstance(node, CallNode) and node.function == "@in":
        return _membership(node, bindings)
    step = _step(node)
    if step is None:
        return None
    operand, key, tested = step
    domain = _domain(operand, bindings)
    if domain is not None:
        kind, name, domain_node = domain
        return Read(kind, name, key, node, domain_node, last=False, tested=tested)
    whole = _domain(node, bindings)
    if whole is None:
        return None
    kind, name, domain_node = whole
    return Read(kind, name, None, node, domain_node, last=True, tested=tested)


def _membership(node: CallNode, bindings: Bindings) -> Read | None:
    """``"name" in device.attributes["domain"]``."""
    key, container = node.arguments
    name = string_constant(key)
    domain = _domain(container, bindings)
    if domain is None:
        kind = _map(container, bindings)
        return None if kind is None else Read(kind, name, None, node, key, last=True, tested=True)
    return Read(domain[0], domain[1], name, node, domain[2], last=False, tested=True)


def _step(node: SyntaxNode) -> tuple[SyntaxNode, str | None, bool] | None:
    """Return the operand of a lookup, its key if known, and whether the key may be absent without an error."""
    if isinstance(node, SelectNode):
        return node.operand, node.field, node.test_only
    if isinstance(node, CallNode) and node.function in _INDEXING and len(node.arguments) == 2:
        operand, key = node.arguments
        return operand, string_constant(key), node.function != "_[_]"
    return None


def _domain(node: SyntaxNode, bindings: Bindings) -> tuple[Kind, str | None, SyntaxNode] | None:
    """``device.attributes["domain"]``."""
    node = _resolved(node, bindings)
    step = _step(node)
    if step is None:
        return None
    kind = _map(step[0], bindings)
    if kind is None:
        return None
    written = node.arguments[-1] if isinstance(node, CallNode) else node
    return kind, step[1], written


def _map(node: SyntaxNode, bindings: Bindings) -> Kind | None:
    """``device.attributes``."""
    node = _resolved(node, bindings)
    if (
        isinstance(node, SelectNode)
        and isinstance(node.operand, IdentNode)
        and node.operand.name in {"device", ".device"}
    ):
        return _KINDS.get(node.field)
    return None


def _resolved(node: SyntaxNode, bindings: Bindings) -> SyntaxNode:
    seen = 0
    while isinstance(node, IdentNode) and node.name in bindings and seen <= len(bindings):
        node, seen = bindings[node.name], seen + 1
    return node


ORDERED: Final = {"_<_": "<", "_<=_": "<=", "_>_": ">", "_>=_": ">="}
EQUAL: Final = {"_==_": "==", "_!=_": "!="}
COMPARISONS: Final = {**ORDERED, **EQUAL}
SWAPPED: Final = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "==": "==", "!=": "!="}
"""The equivalent operator with its sides exchanged."""


class Replacement(Struct, frozen=True):
    """A replacement of the characters from ``start`` to ``end`` (exclusive) of an expression."""

    start: int
    end: int
    text: str


class Mistake(Struct, frozen=True):
    """A mistake from ``start`` to ``end`` (exclusive) of an expression; ``fix`` is certain, or empty."""

    rule: str
    start: int
    end: int
    message: str
    help: str
    fix: tuple[Replacement, ...] = ()


def replacing(node: SyntaxNode, text: str) -> tuple[Replacement, ...]:
    """Return the fix that replaces a node by a text; empty for an empty text."""
    return (Replacement(node.start, node.end, text),) if text else ()


def quoted(value: str, text: str) -> str:
    """Return a name in the quotes that an expression uses; API names contain no quotes."""
    return f"'{value}'" if "'" in text and '"' not in text else f'"{value}"'


def comparison_of(
    node: SyntaxNode, is_wanted: Callable[[SyntaxNode], object]
) -> tuple[SyntaxNode, str, SyntaxNode] | None:
    """Return a comparison as its first wanted side, the operator from there, and the other side; None for any other."""
    if isinstance(node, CallNode) and node.function in COMPARISONS and len(node.arguments) == 2:
        left, right = node.arguments
        operator = COMPARISONS[node.function]
        if is_wanted(left):
            return left, operator, right
        if is_wanted(right):
            return right, SWAPPED[operator], left
    return None


def conjuncts(root: SyntaxNode) -> Iterator[SyntaxNode]:
    """Yield the operands of ``&&``, in order."""
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if isinstance(node, CallNode) and node.function == "_&&_":
            waiting += reversed(node.arguments)
        else:
            yield node


def value_read(node: SyntaxNode) -> Read | None:
    """Return the attribute or capacity whose value a node is; None if the node is not such a value."""
    found = read_of(node)
    return found if found is not None and not found.last and not found.tested else None


def string_constant(node: SyntaxNode) -> str | None:
    """Return the value of a string literal; None for any other node."""
    return node.value if isinstance(node, LiteralNode) and isinstance(node.value, str) else None


def constant_text(node: SyntaxNode) -> str | None:
    """Return a string or number literal as text; None for any other node."""
    if not isinstance(node, LiteralNode) or not is_number(node):
        return string_constant(node)
    return f"{node.value:g}" if isinstance(node.value, float) else str(node.value)


def is_number(node: SyntaxNode) -> bool:
    """Return whether a node is a number literal."""
    return isinstance(node, LiteralNode) and isinstance(node.value, int | float) and not isinstance(node.value, bool)


def operator_span(node: SyntaxNode, expression: ManifestExpression) -> tuple[int, int]:
    """Return the span of a call's operator or function name."""
    assert isinstance(node, CallNode)  # noqa: S101 - only calls are compared
    name = COMPARISONS.get(node.function, node.function)
    start = expression.text.find(name, node.place if node.target is None else node.target.end, node.end)
    return (start, start + len(name)) if start >= 0 else (node.start, node.end)


def character_index(text: str, line: int, column: int) -> int:
    """Return the index of a line and column, both from 1, in a text."""
    return sum(len(part) + 1 for part in text.split("\n")[: line - 1]) + column - 1


Role: TypeAlias = Literal["selector", "derived"]


class ManifestExpression(Struct, frozen=True):
    """An expression of a manifest.

    Attributes:
        path: its field.
        root: its syntax tree, type-checked only if ``program`` is set; None if it cannot be parsed.
        program: the compiled expression; None if it does not compile.
        declarations: the environment it was compiled with.
    """

    path: str
    text: str
    role: Role
    root: SyntaxNode | None
    program: Selector | DerivedExpression | None
    error: CelCompileError | None
    declarations: DeviceEnvironment

    def nodes(self) -> Iterator[SyntaxNode]:
        """Return its syntax nodes, parents first; none if it cannot be parsed."""
        return walk(self.root) if self.root is not None else iter(())


def compiled(
    text: str, declarations: DeviceEnvironment, *, path: str = "", role: Role = "selector"
) -> ManifestExpression:
    """Compile an expression as an API server with these declarations does."""
    root: SyntaxNode | None = None
    try:
        root = parse(text)
    except (CompileFailure, RecursionError):
        pass  # the compiler reports the same, with the position
    compiler = compile_derived if role == "derived" else compile_selector
    try:
        program = compiler(text, environment=declarations)
    except CelCompileError as error:
        return ManifestExpression(path, text, role, root, None, error, declarations)
    return ManifestExpression(path, text, role, program.root, program, None, declarations)


def blamed(expression: ManifestExpression, device: Device) -> Read | None:
    """Return the first read of an expression that a device, for which it fails, does not have; None if all exist."""
    for read in plain_reads(expression):
        held = device.attributes if read.kind == "attributes" else device.capacity
        if read.name not in held.get(read.domain or "", {}):
            return read
    return None


def plain_reads(expression: ManifestExpression) -> Iterator[Read]:
    """Return the reads that fail for a device without the attribute or capacity."""
    return (read for read in reads(expression) if read.name is not None and not read.tested and not read.last)


def check_presence_first(expression: ManifestExpression, read: Read) -> str:
    """Return the remedy for a selector that fails for a device without an attribute or capacity."""
    return f"check first: has({read.node.text(expression.text)}) && …"


def begin_with_driver(expression: ManifestExpression, read: Read) -> str:
    """Return the remedy for a selector that fails for devices of other drivers."""
    return f'begin with device.driver == "{read.domain}" &&{" ( … )" if "||" in expression.text else ""}'


def guarded(expression: ManifestExpression, driver: str) -> tuple[Replacement, ...]:
    """Return the edits that restrict a selector to the devices of a driver."""
    text = expression.text
    guard = f"device.driver == {quoted(driver, text)} && "
    begin, end = len(text) - len(text.lstrip()), len(text.rstrip())
    if "||" in text or "?" in text:
        return Replacement(begin, begin, f"{guard}("), Replacement(end, end, ")")
    return (Replacement(begin, begin, guard),)
