"""YAML to nodes and values, one event after the other: no depth, no alias and no number exhausts it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import yaml
from yaml.events import (
    AliasEvent,
    DocumentEndEvent,
    DocumentStartEvent,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
    StreamEndEvent,
    StreamStartEvent,
)

from dra_kit.manifests.limits import Limits
from dra_kit.manifests.parsing.nodes import MappingNode, Node, ScalarNode, SequenceNode
from dra_kit.manifests.parsing.remedies import with_remedy
from dra_kit.manifests.parsing.scalars import NoValue, is_merge, json_value, key_text, resolve
from dra_kit.manifests.unreadable import Unreadable

_LOADER: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_IGNORED: Final = frozenset({StreamStartEvent, DocumentStartEvent})

_DIRECTIVES: Final = 20
"""Lines that begin with ``%``: kubectl takes none, and libyaml compares each ``%TAG`` with all before it."""


def compose(text: str, limits: Limits, *, inner: bool = True) -> Iterator[Node]:
    """Yield the documents of a YAML text, one after the other, empty ones too.

    Args:
        text: the text.
        limits: of all documents together.
        inner: whether the nodes inside of a list or mapping are stored, and not only its value.

    Raises:
        Unreadable: from here on there is no YAML, or more of it than the limits allow.
    """
    directives = text.count("\n%") + text.startswith("%")
    if directives > _DIRECTIVES:
        raise Unreadable(
            f"{directives} lines begin with %, as directives do, and at most {_DIRECTIVES} may: indent them, or leave "
            "them out"
        )
    loader = None
    try:
        loader = _LOADER(text)
        composer = _Composer(loader, limits, inner=inner)
        while (root := composer.document()) is not None:
            yield root
    except yaml.reader.ReaderError as error:
        raise Unreadable(str(error.reason), _index(text, error)) from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = " ".join(part for part in (error.context, error.problem) if part)
        raise Unreadable(with_remedy(problem), mark.index if mark is not None else 0) from None
    finally:
        if loader is not None:
            loader.dispose()


def _index(text: str, error: yaml.reader.ReaderError) -> int:
    """Return the index of a character that may not be there; libyaml counts bytes."""
    return len(text.encode(errors="replace")[: error.position].decode(errors="ignore"))


class _Anchor:
    """A node with a name, and how much is in it."""

    __slots__ = ("characters", "node", "values")

    def __init__(self) -> None:
        self.node: Node | None = None  # it is open as long as there is none
        self.values = 0
        self.characters = 0


class _Open:
    """A list or mapping whose end has not come."""

    __slots__ = ("anchor", "characters", "key", "node", "values")

    def __init__(self, node: SequenceNode | MappingNode, anchor: _Anchor | None, values: int, characters: int) -> None:
        self.node = node
        self.anchor = anchor
        self.values = values
        self.characters = characters
        self.key: tuple[str | None, ScalarNode] | None = None


class _Composer:
    """Makes one document after the other."""

    def __init__(self, loader: Any, limits: Limits, *, inner: bool) -> None:
        self._inner = inner
        self._next = loader.get_event
        self._limits = limits
        self._open: list[_Open] = []
        self._anchors: dict[str, _Anchor] = {}
        self._values = 0
        self._characters = 0
        self._root: Node | None = None

    def document(self) -> Node | None:
        """Return the next document; None behind the last one."""
        self._anchors.clear()
        while True:
            event = self._next()
            kind = type(event)
            if kind is ScalarEvent:
                self._scalar(event)
            elif kind is MappingStartEvent:
                self._begin(MappingNode(event.start_mark.index), event)
            elif kind is SequenceStartEvent:
                self._begin(SequenceNode(event.start_mark.index), event)
            elif kind is MappingEndEvent or kind is SequenceEndEvent:
                self._end(event)
            elif kind is AliasEvent:
                self._alias(event)
            elif kind is DocumentEndEvent:
                return self._root
            elif kind is StreamEndEvent:
                return None
            else:
                assert kind in _IGNORED  # noqa: S101 - there are no other events

    def _scalar(self, event: Any) -> None:
        text = event.value
        start = event.start_mark.index
        plain = event.implicit[0] and event.tag is None
        key = self._is_key()
        try:
            if key and is_merge(text, event.tag, plain=plain):
                self._open[-1].key = None, ScalarNode(start, event.end_mark.index, text, event.style, None)
                return
            value = resolve(text, event.tag, plain=plain)
            value = key_text(value) if key else json_value(value)
        except NoValue as error:
            raise Unreadable(str(error), start) from None
        node = ScalarNode(start, event.end_mark.index, text, event.style, value)
        anchor = self._anchor(event)
        if anchor is not None:
            anchor.node, anchor.values, anchor.characters = node, 1, len(text)
        self._count(1, len(text), start)
        self._add(node, start)

    def _begin(self, node: SequenceNode | MappingNode, event: Any) -> None:
        if len(self._open) == self._limits.depth:
            raise Unreadable(
                f"it is nested more than {self._limits.depth} levels deep, and no object of Kubernetes is", node.start
            )
        if self._is_key():
            raise Unreadable("a list or mapping is no key", node.start)
        self._open.append(_Open(node, self._anchor(event), self._values, self._characters))
        self._count(1, 0, node.start)

    def _end(self, event: Any) -> None:
        frame = self._open.pop()
        node = frame.node
        node.end = event.end_mark.index
        if frame.anchor is not None:
            frame.anchor.node = node
            frame.anchor.values = self._values - frame.values
            frame.anchor.characters = self._characters - frame.characters
        self._add(node, node.start)

    def _alias(self, event: Any) -> None:
        start = event.start_mark.index
        anchor = self._anchors.get(event.anchor)
        if anchor is None:
            raise Unreadable(f"there is no anchor {event.anchor} before its alias in the document", start)
        node = anchor.node
        if node is None:
            raise Unreadable("an alias stands inside of what it repeats", start)
        self._count(anchor.values, anchor.characters, start)
        self._add(node, start)

    def _anchor(self, event: Any) -> _Anchor | None:
        if event.anchor is None:
            return None
        made = self._anchors[event.anchor] = _Anchor()
        return made

    def _count(self, values: int, characters: int, start: int) -> None:
        self._values += values
        self._characters += characters
        if self._values > self._limits.values:
            raise Unreadable(
                f"it has more than {self._limits.values} values once its aliases are replaced, keys among them; split "
                "it, or save it as JSON, whose keys do not count",
                start,
            )
        if self._characters > self._limits.file_bytes:
            raise Unreadable(
                f"its texts have more than {self._limits.file_bytes} characters once its aliases are replaced; "
                "split it",
                start,
            )

    def _is_key(self) -> bool:
        if not self._open:
            return False
        frame = self._open[-1]
        return frame.key is None and isinstance(frame.node, MappingNode)

    def _add(self, node: Node, start: int) -> None:
        """Put a node that is complete where it belongs."""
        if not self._open:
            self._root = node
            return
        frame = self._open[-1]
        parent = frame.node
        if isinstance(parent, SequenceNode):
            if self._inner:
                parent.items.append(node)
            parent.value.append(node.value)
        elif frame.key is None:
            frame.key = self._key(node, start)
        else:
            key, key_node = frame.key
            frame.key = None
            if self._inner:
                parent.entries.append((key, key_node, node))
            if key is None:
                self._merge(parent.value, node)
            else:
                parent.value[key] = node.value

    def _key(self, node: Node, start: int) -> tuple[str, ScalarNode]:
        if not isinstance(node, ScalarNode):
            raise Unreadable("a list or mapping is no key", start)
        try:
            # of an alias: the value is not that of a key
            return key_text(node.value), node
        except NoValue as error:
            raise Unreadable(str(error), start) from None

    def _merge(self, into: dict[str, Any], node: Node) -> None:
        """Merge mappings; kubectl lets them win over what stands before, and the first of a list over the others."""
        merged = reversed(node.value) if isinstance(node, SequenceNode) else [node.value]
        for mapping in merged:
            if not isinstance(mapping, dict):
                raise Unreadable("<< merges a mapping or a list of mappings, and nothing else", node.start)
            into.update(mapping)
