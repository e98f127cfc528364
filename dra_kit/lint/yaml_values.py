"""The values of YAML nodes, as kubectl reads them."""

from __future__ import annotations

import json
import re
from typing import Any, Final

import yaml

from dra_kit.lint.positions import Place

MAX_VALUES: Final = 1_000_000
"""Values of one document, with those that aliases repeat: more is no manifest but an attack on its reader."""

_INT: Final = re.compile(r"[-+]?(?:0[xX][0-9a-fA-F_]+|0[oO]?[0-7_]+|0[bB][01_]+|[0-9][0-9_]*)")
_FLOAT: Final = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_NOT_IN_PYYAML: Final = re.compile(
    r"[-+]?0o[0-7_]+|[-+]?0[0-9]*[89][0-9]*|[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)[eE][-+]?[0-9]+|[yYnN]"
)
"""What PyYAML takes for texts, and kubectl for numbers and truth values."""

_WHOLE: Final = 1e21
"""Go's JSON writes larger numbers with an exponent."""

_CONSTANTS: Final[dict[str, bool | None]] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON", "y", "Y"), True),
    **dict.fromkeys(("false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF", "n", "N"), False),
}


class Refused(Exception):
    """A node that has no value.

    Args:
        text: why.
        node: which.
    """

    def __init__(self, text: str, node: yaml.Node) -> None:
        super().__init__(text)
        self.text = text
        self.place = Place(node.start_mark.index, node.start_mark.index + 1)


class Builder:
    """Values of nodes: scalars by the rules of kubectl's YAML library, which are those of YAML 1.1 without times.

    Attributes:
        repeated: paths of keys that stand twice in one mapping, with the place of the second one.
    """

    def __init__(self) -> None:
        self.repeated: list[tuple[str, Place]] = []
        self._known: dict[int, tuple[Any, int]] = {}
        self._open: set[int] = set()

    def value(self, node: yaml.Node) -> Any:
        """The value of a node.

        Raises:
            Refused: it has none, or a monstrous one.
        """
        return self._build(node)[0]

    def _build(self, node: yaml.Node) -> tuple[Any, int]:
        """The value, and how many values it is made of."""
        known = self._known.get(id(node))
        if known is not None:
            return known
        if id(node) in self._open:
            raise Refused("an alias stands inside of what it repeats", node)
        self._open.add(id(node))
        size = 1
        made: Any
        if isinstance(node, yaml.SequenceNode):
            made = []
            for item in node.value:
                value, weight = self._build(item)
                made.append(value)
                size += weight
        elif isinstance(node, yaml.MappingNode):
            made = {}
            merged: dict[str, Any] = {}
            for key, below in node.value:
                value, weight = self._build(below)
                size += weight
                if key.tag == "tag:yaml.org,2002:merge":
                    for mapping in reversed(value if isinstance(value, list) else [value]):
                        merged |= mapping if isinstance(mapping, dict) else {}
                else:
                    made[self._key(key)] = value
            made = {**merged, **made}
        elif isinstance(node, yaml.ScalarNode):
            made = _scalar(node)
        else:
            raise Refused("a node is of a kind that YAML does not have", node)
        if size > MAX_VALUES:
            raise Refused(f"it has more than {MAX_VALUES} values once its aliases are replaced", node)
        self._open.discard(id(node))
        self._known[id(node)] = made, size
        return made, size

    def _key(self, node: yaml.Node) -> str:
        value = self.value(node)
        return value if isinstance(value, str) else json.dumps(value, default=str)

    def note_repeated(self, root: yaml.Node) -> None:
        """Notes the keys that stand twice in one mapping, anywhere below."""
        waiting = [("", root)]
        seen: set[int] = set()
        while waiting:
            path, node = waiting.pop()
            if id(node) in seen or isinstance(node, yaml.ScalarNode):
                continue
            seen.add(id(node))
            if isinstance(node, yaml.SequenceNode):
                waiting += [(f"{path}[{index}]", item) for index, item in enumerate(node.value)]
                continue
            keys: set[str] = set()
            for key, value in node.value:
                name = self._key(key)
                if name in keys and key.tag != "tag:yaml.org,2002:merge":
                    self.repeated.append((below(path, name), Place(key.start_mark.index, key.end_mark.index)))
                keys.add(name)
                waiting.append((below(path, name), value))


def below(path: str, key: str) -> str:
    """The path of a field below another one."""
    return f"{path}.{key}" if path else key


def _scalar(node: yaml.ScalarNode) -> Any:
    text = str(node.value)
    kind = node.tag.rpartition(":")[2]
    plain = not node.style
    if not plain and kind not in {"int", "float", "bool", "null"}:
        return text
    if plain and kind == "str" and not _NOT_IN_PYYAML.fullmatch(text):
        return text
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    number = _integer(text.replace("_", "")) if _INT.fullmatch(text) else None
    return _number(text) if number is None else number


def _integer(text: str) -> int | None:
    digits = text.lstrip("+-")
    if len(digits) > 1 and digits[0] == "0" and digits[1] not in "xXoObB":
        text = text.replace("0", "0o", 1)
    try:
        return int(text, 0)
    except ValueError:
        return None  # 08


def _number(text: str) -> int | float | str:
    """A number with a fraction; kubectl writes a whole one as an integer."""
    if not _FLOAT.fullmatch(text):
        return text
    number = float(text)
    return int(number) if number.is_integer() and abs(number) < _WHOLE else number
