"""Requests and answers of Kubernetes API servers, replayed against the embedded one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, Final

from dra_kit.kubernetes.release import KubernetesVersion, Release
from tests.golden.api_client import REQUEST, Replayer, expand
from tests.golden.api_fit import MISSING, Fitting
from tests.golden.kind import Case, Line

NAME = "api"

_FREE_TEXTS = (
    "json: ", "json parse error: ", "strconv.", "error decoding patch", "error encoding patch", "converting YAML",
    "pkg/runtime/scheme.go", "quantities must match", "unable to parse quantity", "illegal base64", "parsing time",
    "valueUnstructured", "expected map, got &", "continue key is not valid", "to be a protobuf message",
    "unknown conversion", "unexpected end of JSON input", "invalid character '",
)  # fmt: skip
"""Messages of Go's libraries: differences are only counted."""
_FREE_TAILS = ("\n@@ ", "compilation failed: ")
"""After these texts, a message contains a difference of Go structs or a message of cel-go."""


def recognises(line: Line) -> bool:
    return {"id", "gates", "steps"} <= line.keys()


def for_release(former: Iterable[Line], changed: Iterable[Line]) -> list[Line]:
    """Return the lines of a file as a release answers them that changed some of those before, and serves no v1beta1.

    What may differ from the former answer may not from the changed one: it has another id.
    """
    lines = {line["id"]: line for line in former}
    for line in changed:
        lines[line["id"]] = {**line, "id": f"{line['id']} (changed)"}
    return [_without_removed(line) for line in lines.values()]


_REMOVED: Final = "/apis/resource.k8s.io/v1beta1/"


def _without_removed(line: Line) -> Line:
    """Return a line that asks for a removed version with these requests only, which find nothing."""
    steps = [
        {key: step[key] for key in step.keys() & REQUEST} | {"keep": "status", "status": 404}
        if _REMOVED in step.get("path", "") else {"settle": True}  # templates count the steps
        for step in line["steps"]
    ]  # fmt: skip
    return {**line, "id": f"{line['id']} (removed)", "steps": steps} if any("path" in step for step in steps) else line


def _without_former(line: Line) -> Line:
    """Return a line without the answers of the release before."""
    return {**line, "steps": [{key: step[key] for key in step if key != "was"} for step in line["steps"]]}


def replay(lines: Iterable[Line], release: Release) -> Iterator[Case]:
    """Replay each line against an empty server; a watch ends after all its events."""
    with asyncio.Runner() as runner:
        replayer = Replayer(release.version)
        try:
            for line in map(_without_former, lines):
                words: list[str] = []
                comparison = Comparison(words, sent_once=release.version != TWICE, in_words=release.version >= DECLARED)
                whole = expand(line)
                observe = partial(_observe, runner.get_loop(), replayer, whole, comparison)
                id_ = line["id"] if release.version >= DECLARED else f"{line['id']} ({release.version})"
                yield Case(id_, whole, observe, words)
        finally:
            runner.run(replayer.close())


TWICE: Final = KubernetesVersion(1, 37)
"""The release to which all requests were sent twice, so that it is known which answers have causes in random order."""


DECLARED: Final = KubernetesVersion(1, 36)
"""The first release with declarative validation. Of older ones, the refused fields are compared and not the words.

What may differ from them may not from newer ones: their lines have other ids.
"""


def _observe(loop: asyncio.AbstractEventLoop, replayer: Replayer, line: Line, comparison: Comparison) -> Line:
    got = loop.run_until_complete(replayer.answers(line))
    steps = [comparison.answer(step, answer) for step, answer in zip(line["steps"], got, strict=True)]
    return line | {"steps": steps}


_INVALID: Final = 422
_WORDS: Final = ("causes", "message")


class Comparison:
    """Normalizes our answers to one line as far as they agree; notes different texts.

    Args:
        words: where different texts are noted.
        sent_once: whether nothing is known about the order of causes.
        in_words: whether the causes and messages of refusals are compared, or only which fields are refused for what.
    """

    def __init__(self, words: list[str], *, sent_once: bool = False, in_words: bool = True) -> None:
        self._fitting = Fitting()
        self._words = words
        self._sent_once = sent_once
        self._in_words = in_words

    def answer(self, step: Line, got: Line) -> Line:
        """Compare like :meth:`step` with alternative recorded answers."""
        for one in step.get("anyOf", ()):
            whole = {key: value for key, value in step.items() if key != "anyOf"} | one
            if self.step(whole, {key: value for key, value in got.items() if key != "anyOf"}) == whole:
                return step
        return self.step(step, got)

    def step(self, step: Line, got: Line) -> Line:
        if self._sent_once and "message" in step and _reordered(step, got):
            got = got | {"causes": step["causes"], "message": step["message"]}
        invalid = step.get("status") == got.get("status") == _INVALID
        if invalid and not self._in_words and _refused(step) == _refused(got):
            if any(step.get(key) != got.get(key) for key in _WORDS):
                self._words.append(str(got.get("message")))
            got = {key: value for key, value in got.items() if key not in _WORDS}
            got |= {key: step[key] for key in _WORDS if key in step}
        fitted: Line = {}
        for key, value in got.items():
            expected: Any = step.get(key, MISSING)
            if key == "stored":
                fitted[key] = self._fitting.fit(expected, value, step.get("body", MISSING))
            elif key == "during":
                fitted[key] = [self.step(*pair) for pair in zip(expected, value, strict=True)]
            elif key == "message":
                fitted[key] = self._text(expected, value)
            elif key == "text" and step.get("path") == "/metrics" and expected != MISSING:
                self._words.append(value)  # not compared
                fitted[key] = expected
            elif key == "causes" and expected != MISSING and len(value) == len(expected):
                fitted[key] = [
                    self._fitting.fit(cause, ours) | {"message": self._text(cause["message"], ours["message"])}
                    for cause, ours in zip(expected, value, strict=True)
                ]
            else:
                fitted[key] = self._fitting.fit(expected, value)
        return fitted

    def _text(self, expected: Any, text: str) -> Any:
        fitted = self._fitting.fit(expected, text)
        if fitted == expected or not isinstance(expected, str):
            return fitted
        heads = [expected.partition(tail)[0] for tail in _FREE_TAILS if tail in expected]
        ours = [text.partition(tail)[0] for tail in _FREE_TAILS if tail in expected]
        free = bool(heads) and self._fitting.fit(min(heads, key=len), min(ours, key=len)) == min(heads, key=len)
        if free or any(part in expected for part in _FREE_TEXTS):
            self._words.append(text)
            return expected
        return fitted


def _refused(answer: Line) -> set[tuple[str, str]]:
    """Return the fields of the causes with their reasons.

    What is required and empty is also invalid: older releases have a cause for either or for both.
    """
    causes = answer.get("causes") or ()
    return {(cause["field"], _EMPTY.get(cause["reason"], cause["reason"])) for cause in causes}


_EMPTY: Final = {"FieldValueRequired": "FieldValueInvalid"}


def _reordered(step: Line, got: Line) -> bool:
    """Return whether an answer has the same causes in another order, and a text that names all of them."""
    expected, causes = step.get("causes") or [], got.get("causes") or []
    if len(causes) < 2 or "message" not in got or sorted(map(str, expected)) != sorted(map(str, causes)):
        return False
    return all(f"{cause['field']}: {cause['message']}" in got["message"] for cause in causes)
