"""Documents in a text of YAML or JSON, by kubectl's rules."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from dra_kit.kubernetes.manifests.files import MANIFESTS, Limits, UnreadableText
from dra_kit.kubernetes.manifests.yaml_reader import InvalidScalar, Node, ScalarNode, SequenceNode, compose, json_value
from dra_kit.kubernetes.values.json import DuplicateKeysObject, check_json, make_decoder

_SPACE: Final = " \t\r\n"
_SURROGATE: Final = re.compile(r"(?<=\\)u[dD][89a-fA-F][0-9a-fA-F]{2}")
_RAW: Final = "parameters"
"""The field of opaque configuration, which the API server stores unchanged, including duplicate keys."""


class TextDocument:
    """One document of a text; ``root`` is None for JSON, whose nodes are created on demand."""

    def __init__(self, value: Any, root: Node | None, text: str, limits: Limits) -> None:
        self.value = value
        self._root = root
        self._is_json = root is None
        self._text = text
        self._limits = limits

    @property
    def root(self) -> Node:
        """Its node; for JSON that is not YAML, a node with only a position."""
        if self._root is None:
            # JSON strings contain no tabs; YAML rejects tabs between tokens, and lone surrogates
            text = _SURROGATE.sub("u0020", self._text.replace("\t", " "))
            try:
                self._root = next(compose(text, self._limits))
            except (UnreadableText, StopIteration):
                self._root = ScalarNode(0, min(1, len(text)), "", "", None)
        return self._root

    def repeated(self, *, everywhere: bool = False) -> Iterator[tuple[str, ScalarNode]]:
        """Yield the paths and nodes of duplicate keys; with ``everywhere`` also in the opaque parameters of JSON."""
        passed_over = _RAW if self._is_json and not everywhere else None
        if self._is_json and not _repeats(self.value, passed_over):
            return
        waiting = [("", self.root)]
        seen: set[int] = set()
        while waiting:
            path, node = waiting.pop()
            if id(node) in seen or isinstance(node, ScalarNode):
                continue
            seen.add(id(node))
            if isinstance(node, SequenceNode):
                waiting += [(f"{path}[{index}]", item) for index, item in enumerate(node.items)]
                continue
            keys: set[str] = set()
            for key, key_node, value in node.entries:
                if key is None:
                    waiting.append((path, value))
                    continue
                where = f"{path}.{key}" if path else key
                if key in keys:
                    yield where, key_node
                keys.add(key)
                if key != passed_over:
                    waiting.append((where, value))


def parse_documents(text: str, limits: Limits = MANIFESTS, *, places: bool = True) -> Iterator[TextDocument]:
    """Yield the documents of a text, including those before a problem: one of JSON, or any number of YAML.

    Args:
        text: without a byte order mark.
        limits: of all of them together.
        places: whether positions are needed in addition to values.

    Raises:
        UnreadableText: the rest is neither YAML nor JSON, or exceeds the limits.
    """
    if text.lstrip(_SPACE).startswith(("{", "[")):
        try:
            check_json(text.encode(errors="replace"), depth=limits.depth, values=limits.values)
        except ValueError as error:
            raise UnreadableText(str(error)) from None
        try:
            yield TextDocument(_json_document(text), None, text, limits)
        except UnreadableText:
            raise
        except ValueError:
            pass  # it may be a YAML mapping or list; kubectl also tries both
        else:
            return
    for root in compose(text, limits, inner=places):
        yield TextDocument(root.value, root, text, limits)


def decode_utf8(content: bytes) -> str:
    """Decode a text and remove its byte order mark; raises UnreadableText if it is not UTF-8."""
    try:
        return content.decode().removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise UnreadableText(f"byte {error.start} is not valid UTF-8 ({error.reason}); save it as UTF-8") from None


def list_items(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the objects of a List with their paths; yield any other value itself, with an empty path."""
    kind = value.get("kind") if isinstance(value, dict) else None
    if not (isinstance(kind, str) and kind.endswith("List") and isinstance(value.get("items"), list)):
        yield "", value
        return
    kind = kind.removesuffix("List")
    # items of a list of one kind may omit it
    implied = {"apiVersion": value.get("apiVersion"), "kind": kind} if kind else {}
    for index, item in enumerate(value["items"]):
        for path, found in list_items({**implied, **item} if isinstance(item, dict) else item):
            yield f"items[{index}]{'.' if path else ''}{path}", found


def _repeats(value: Any, passed_over: str | None) -> bool:
    waiting = [value]
    while waiting:
        found = waiting.pop()
        if isinstance(found, DuplicateKeysObject):
            return True
        if isinstance(found, dict):
            waiting += [item for key, item in found.items() if key != passed_over]
        elif isinstance(found, list):
            waiting += found
    return False


_DIGITS: Final = 400


def _integer(digits: str) -> Any:
    return int(digits) if len(digits) < 19 else _float(digits)


def _float(digits: str) -> Any:
    try:
        return json_value(int(digits) if len(digits) <= _DIGITS and digits.lstrip("-").isdigit() else float(digits))
    except InvalidScalar:
        raise UnreadableText("a number is too large for a 64-bit float; quote it") from None


_json_document = make_decoder(parse_int=_integer, parse_float=_float)
"""Decodes JSON as kubectl does: integers beyond 64 bits become floats, and whole floats become integers."""
