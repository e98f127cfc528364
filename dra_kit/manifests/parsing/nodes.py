"""The nodes of a YAML document, with their places in the text and their values."""

from __future__ import annotations

from typing import Any, TypeAlias


class ScalarNode:
    """A text, a number, a truth value or nothing.

    Attributes:
        start: index of its first character in the text.
        end: index behind its last one.
        text: its content.
        style: the quote that it stands in, ``|`` or ``>``; empty for a plain one.
        value: what kubectl takes it for.
    """

    __slots__ = ("end", "start", "style", "text", "value")

    def __init__(self, start: int, end: int, text: str, style: str, value: Any) -> None:
        self.start: int = start
        self.end: int = end
        self.text: str = text
        self.style: str = style
        self.value: Any = value


class SequenceNode:
    """A list.

    Attributes:
        start: index of its first character in the text.
        end: index behind its last one.
        items: its items.
        value: what they are.
    """

    __slots__ = ("end", "items", "start", "value")

    def __init__(self, start: int) -> None:
        self.start: int = start
        self.end: int = start
        self.items: list[Node] = []
        self.value: list[Any] = []


class MappingNode:
    """A mapping.

    Attributes:
        start: index of its first character in the text.
        end: index behind its last one.
        entries: the key as a text, its node and that of the value, in the order of the text; of an entry that merges
            other mappings the key is None.
        value: what it is with what is merged into it; the last of several entries with the same key counts.
    """

    __slots__ = ("_index", "end", "entries", "start", "value")

    def __init__(self, start: int) -> None:
        self.start: int = start
        self.end: int = start
        self.entries: list[tuple[str | None, ScalarNode, Node]] = []
        self.value: dict[str, Any] = {}
        self._index: dict[str, tuple[ScalarNode, Node]] | None = None

    @property
    def index(self) -> dict[str, tuple[ScalarNode, Node]]:
        """The nodes of key and value by the key, those that are merged in among them; its own count most."""
        if self._index is None:
            found: dict[str, tuple[ScalarNode, Node]] = {}
            for key, key_node, value in self.entries:
                if key is not None:
                    found.setdefault(key, (key_node, value))
            for key, _, value in self.entries:
                if key is None:
                    for mapping in value.items if isinstance(value, SequenceNode) else [value]:
                        if isinstance(mapping, MappingNode):
                            for name, nodes in mapping.index.items():
                                found.setdefault(name, nodes)
            self._index = found
        return self._index


Node: TypeAlias = ScalarNode | SequenceNode | MappingNode
