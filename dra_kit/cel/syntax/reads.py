"""What an expression reads of a device, as far as its text tells."""

from __future__ import annotations

from typing import Final, NamedTuple

from dra_kit.cel.syntax.tree import Call, Ident, Literal, Node, Select

_PLAIN: Final = frozenset({"driver", "allowMultipleAllocations"})
_OF_A_DOMAIN: Final = frozenset({"attributes", "capacity"})


class Read(NamedTuple):
    """A place of the device.

    Attributes:
        field: ``driver``, ``attributes``, ``capacity`` or ``allowMultipleAllocations``.
        domain: of the attribute or capacity.
        name: of the attribute or capacity in the domain.
    """

    field: str
    domain: str = ""
    name: str = ""


def reads_of(root: Node) -> tuple[Read, ...] | None:
    """Return all reads that can make the value of an expression different for another device.

    Returns:
        The places, sorted, or None where only an evaluation tells them: ``attributes[device.driver]`` and the like.
    """
    found: set[Read] = set()
    stack = [root]
    while stack:
        node = stack.pop()
        read = _read(node)
        if read is not None:
            found.add(read)
        elif isinstance(node, Ident) and node.name.partition(".")[0] == "device":
            return None
        else:
            stack.extend(node.children())
    return tuple(sorted(found))


def _read(node: Node) -> Read | None:
    """Return the place at the end of a chain of selections, if all its keys are in the text."""
    keys: list[str] = []
    while not isinstance(node, Ident):
        if isinstance(node, Select):
            keys.append(node.field)
            node = node.operand
        elif isinstance(node, Call) and node.function == "_[_]":
            node, key = node.arguments
            if not isinstance(key, Literal) or not isinstance(key.value, str):
                return None
            keys.append(key.value)
        else:
            return None
    if node.name != "device":
        return None
    match keys[::-1]:
        case [field] if field in _PLAIN:
            return Read(field)
        case [field, domain, name] if field in _OF_A_DOMAIN:
            return Read(field, domain, name)
    return None
