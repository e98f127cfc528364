"""Request sequences with the answers of a Kubernetes 1.37.1 API server, replayed against the embedded one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from tests.golden.api_client import Replayer, expand
from tests.golden.api_fit import MISSING, Fitting
from tests.golden.kind import Case, Line

NAME = "api"

_GO_TEXT = (
    "json: ", "strconv.", "error decoding patch", "error encoding patch", "converting YAML", "pkg/runtime/scheme.go",
    "quantities must match", "illegal base64", "parsing time", "continue key is not valid",
)  # fmt: skip
"""Messages of Go's libraries: only that there is one counts."""
_DIFF = "\n@@ "
"""What follows is a difference between two Go structs."""


def recognises(line: Line) -> bool:
    return {"id", "gates", "steps"} <= line.keys()


def replay(lines: Iterable[Line]) -> Iterator[Case]:
    """Each line against a server without objects; watches end when all their events have come."""
    with asyncio.Runner() as runner:
        replayer = Replayer()
        try:
            for line in lines:
                yield Case(line["id"], expand(line), partial(_observe, runner, replayer, expand(line)))
        finally:
            runner.run(replayer.close())


def _observe(runner: asyncio.Runner, replayer: Replayer, line: Line) -> Line:
    fitting = Fitting()
    got = runner.run(replayer.answers(line))
    steps = [_fitted(fitting, step, answer) for step, answer in zip(line["steps"], got, strict=True)]
    return line | {"steps": steps}


def _fitted(fitting: Fitting, step: Line, got: Line) -> Line:
    fitted: Line = {}
    for key, value in got.items():
        expected: Any = step.get(key, MISSING)
        if key == "stored":
            fitted[key] = fitting.fit(expected, value, step.get("body", MISSING))
        elif key == "during":
            fitted[key] = [_fitted(fitting, *pair) for pair in zip(expected, value, strict=True)]
        elif key == "message":
            fitted[key] = _fitted_text(fitting, expected, value)
        elif key == "causes" and expected != MISSING and len(value) == len(expected):
            fitted[key] = [
                fitting.fit(cause, ours) | {"message": _fitted_text(fitting, cause["message"], ours["message"])}
                for cause, ours in zip(expected, value, strict=True)
            ]
        else:
            fitted[key] = fitting.fit(expected, value)
    return fitted


def _fitted_text(fitting: Fitting, expected: Any, text: str) -> Any:
    if isinstance(expected, str):
        if any(part in expected for part in _GO_TEXT):
            return expected
        if _DIFF in expected and fitting.fit(expected.partition(_DIFF)[0], text) == expected.partition(_DIFF)[0]:
            return expected
    return fitting.fit(expected, text)
