"""Which attributes and capacities of a device an expression reads, and where."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, Literal, TypeAlias

from msgspec import Struct

from dra_kit.cel.syntax import tree
from dra_kit.cel.syntax.tree import Call, Comprehension, Ident, Node, Select

Kind: TypeAlias = Literal["attributes", "capacity"]
_KINDS: Final[Mapping[str, Kind]] = {"attributes": "attributes", "capacity": "capacity"}
_INDEXING: Final = frozenset({"_[_]", "_[?_]", "_?._"})
Bindings: TypeAlias = Mapping[str, Node]


class Read(Struct, frozen=True):
    """One place where an expression looks at a device.

    Attributes:
        kind: which map of the device.
        domain: the key of it; None if it is computed.
        name: the key below; None if it is computed, or where the whole domain is read.
        node: all of it.
        domain_node: where the domain is written; None for ``device.attributes`` as a whole.
        last: whether nothing is looked up below the domain: ``name`` is not just unknown.
        tested: whether it fails for no device: ``has()``, ``in``, ``.?``, ``[?]``.
    """

    kind: Kind
    domain: str | None
    name: str | None
    node: Node
    domain_node: Node | None
    last: bool
    tested: bool

    def name_span(self, text: str) -> tuple[int, int]:
        """Where the name is written in the expression, else the whole."""
        node = self.node
        if isinstance(node, Select):
            start = text.find(node.field, node.place, node.end)
            return (start, start + len(node.field)) if start >= 0 else (node.start, node.end)
        if isinstance(node, Call) and node.arguments:
            key = node.arguments[0 if node.function == "@in" else -1]
            return key.start, key.end
        return node.start, node.end

    def domain_span(self) -> tuple[int, int]:
        """Where the domain is written in the expression."""
        node = self.domain_node or self.node
        return node.start, node.end


def reads(root: Node) -> Iterator[Read]:
    """Every read of an expression, as it is written; of ``a.b.c`` the longest one that is known."""
    waiting: list[tuple[Node, Bindings]] = [(root, {})]
    while waiting:
        node, bindings = waiting.pop()
        found = read_of(node, bindings)
        if found is not None:
            yield found
            continue
        if isinstance(node, Comprehension) and node.is_bind:
            waiting.append((node.result, {**bindings, node.accumulator: node.initial}))
            if read_of(node.initial, bindings) is None:
                waiting.append((node.initial, bindings))
            continue
        waiting += [(child, bindings) for child in reversed(list(node.children()))]


def read_of(node: Node, bindings: Bindings | None = None) -> Read | None:
    """Return what a node reads; None if it is something else."""
    bindings = bindings or {}
    if isinstance(node, Call) and node.function == "@in":
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


def _membership(node: Call, bindings: Bindings) -> Read | None:
    """``"name" in device.attributes["domain"]``."""
    key, container = node.arguments
    name = key.value if isinstance(key, tree.Literal) and isinstance(key.value, str) else None
    domain = _domain(container, bindings)
    if domain is None:
        kind = _map(container, bindings)
        return None if kind is None else Read(kind, name, None, node, key, last=True, tested=True)
    return Read(domain[0], domain[1], name, node, domain[2], last=False, tested=True)


def _step(node: Node) -> tuple[Node, str | None, bool] | None:
    """Return the operand of a lookup, its key if that is known, and whether an absent key is no failure."""
    if isinstance(node, Select):
        return node.operand, node.field, node.test_only
    if isinstance(node, Call) and node.function in _INDEXING and len(node.arguments) == 2:
        operand, key = node.arguments
        known = key.value if isinstance(key, tree.Literal) and isinstance(key.value, str) else None
        return operand, known, node.function != "_[_]"
    return None


def _domain(node: Node, bindings: Bindings) -> tuple[Kind, str | None, Node] | None:
    """``device.attributes["domain"]``."""
    node = _resolved(node, bindings)
    step = _step(node)
    if step is None:
        return None
    kind = _map(step[0], bindings)
    if kind is None:
        return None
    written = node.arguments[-1] if isinstance(node, Call) else node
    return kind, step[1], written


def _map(node: Node, bindings: Bindings) -> Kind | None:
    """``device.attributes``."""
    node = _resolved(node, bindings)
    if isinstance(node, Select) and isinstance(node.operand, Ident) and node.operand.name in {"device", ".device"}:
        return _KINDS.get(node.field)
    return None


def _resolved(node: Node, bindings: Bindings) -> Node:
    seen = 0
    while isinstance(node, Ident) and node.name in bindings and seen <= len(bindings):
        node, seen = bindings[node.name], seen + 1
    return node
