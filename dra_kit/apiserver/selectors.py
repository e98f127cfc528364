"""Label selectors of requests, with the grammar of k8s.io/apimachinery ``pkg/labels``."""

from __future__ import annotations

import re

from dra_kit.apiserver.answers import bad_request
from dra_kit.kubernetes.resource.matching import LabelRequirement, LabelSelector

_TOKEN = re.compile(r"\s*(?:(!=|==|=|!|,|\(|\)|>|<)|([^\s!=,()<>]+))")


def parse(text: str) -> LabelSelector:
    """Read ``a=b,c in (d,e),!f`` and the like.

    Raises:
        Refusal: 400, it does not read so.
    """
    return LabelSelector(tuple(_Parser(text).requirements())) if text.strip() else LabelSelector()


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.words: list[str] = []
        position = 0
        while match := _TOKEN.match(text, position):
            self.words.append(match[1] or match[2])
            position = match.end()

    def requirements(self) -> list[LabelRequirement]:
        found = [self._requirement()]
        while self.words:
            if (word := self.words.pop(0)) != ",":
                raise bad_request(f"found '{word}', expected: ',' or 'end of string'")
            if not self.words or self.words[0] == ",":
                raise bad_request(f"found '{self.words[0] if self.words else ''}', expected: identifier after ','")
            found.append(self._requirement())
        return found

    def _requirement(self) -> LabelRequirement:
        word = self._next("!, identifier, or 'end of string'")
        if word == ",":
            raise bad_request("found ',', expected: !, identifier, or 'end of string'")
        if word == "!":
            return LabelRequirement(self._identifier(), "DoesNotExist")
        key = self._identifier(word)
        if not self.words or self.words[0] == ",":
            return LabelRequirement(key, "Exists")
        operator = self.words.pop(0)
        match operator:
            case "=" | "==":
                return LabelRequirement(key, "In", frozenset({self._value()}))
            case "!=":
                return LabelRequirement(key, "NotIn", frozenset({self._value()}))
            case ">" | "<":
                bound = self._value()
                if not re.fullmatch(r"-?\d+", bound):
                    detail = "for 'Gt', 'Lt' operators, the value must be an integer"
                    raise self._refusal(f'values[0]: Invalid value: "{bound}": {detail}')
                return LabelRequirement(key, "Gt" if operator == ">" else "Lt", frozenset({bound}))
            case "in" | "notin":
                return LabelRequirement(key, "In" if operator == "in" else "NotIn", self._set())
        raise self._refusal(f"found '{operator}', expected: in, notin, =, ==, !=, gt, lt")

    def _set(self) -> frozenset[str]:
        if (word := self._next("'('")) != "(":
            raise self._refusal(f"found '{word}', expected: '('")
        values: set[str] = set()
        while True:
            values.add(self._value())
            word = self._next("',' or ')'")
            if word == ")":
                return frozenset(values)
            if word != ",":
                raise self._refusal(f"found '{word}', expected: ',' or ')'")

    def _value(self) -> str:
        """Return an identifier, or the empty value before a comma, a parenthesis or the end."""
        if not self.words or self.words[0] in {",", ")"}:
            return ""
        return self._identifier()

    def _identifier(self, word: str | None = None) -> str:
        word = self._next("identifier") if word is None else word
        if _TOKEN.fullmatch(word) is None or word in {"!=", "==", "=", "!", ",", "(", ")", ">", "<"}:
            raise self._refusal(f"found '{word}', expected: identifier")
        return word

    def _next(self, expected: str) -> str:
        if not self.words:
            raise self._refusal(f"found '', expected: {expected}")
        return self.words.pop(0)

    def _refusal(self, cause: str) -> Exception:
        return bad_request(f"unable to parse requirement: {cause}")
