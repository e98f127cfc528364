"""Tells where two plays of a world part, for people."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator

from tests.cluster.worlds.outcome import BY_OUTCOME, outcome
from tests.golden.kind import Line


def describe(real: list[Line], ours: list[Line]) -> str:
    """The requests so far, and the objects that only one of the two has, of the first phase that differs."""
    lines = []
    for number, (theirs, mine) in enumerate(zip(real, ours, strict=False)):
        lines += [
            f"  {number} {request['method']} {request['path']} {_short(request.get('body'))}"
            for request in theirs["do"]
        ]
        if theirs["answers"] != mine["answers"]:
            return "\n".join([*lines, f"  answers: real {theirs['answers']}, ours {mine['answers']}"])
        if theirs.get("compare") == BY_OUTCOME:
            outcomes = outcome(theirs["settled"]), outcome(mine["settled"])
            if outcomes[0] != outcomes[1]:
                lines += [f"  real {_short(outcomes[0])}", f"  ours {_short(outcomes[1])}"]
                return "\n".join([*lines, *_reasons("real", theirs), *_reasons("ours", mine)])
        elif theirs["settled"] != mine["settled"]:
            return "\n".join([*lines, *_parted(theirs["settled"], mine["settled"])])
    return "\n".join([*lines, "  no difference"])


def _reasons(whose: str, phase: Line) -> Iterator[str]:
    """Why pods are not bound, each text once."""
    conditions = [item for pod in phase["settled"].get("pods", []) for item in pod["status"].get("conditions", [])]
    for text, count in Counter(item["message"] for item in conditions if item.get("message")).items():
        yield f"  {whose}: {count} times {text}"


def _parted(real: Line, ours: Line) -> list[str]:
    lines = []
    for key in sorted({*real, *ours}):
        theirs, mine = real.get(key, []), ours.get(key, [])
        lines += [f"  {key} real: {_short(item)}" for item in theirs if item not in mine]
        lines += [f"  {key} ours: {_short(item)}" for item in mine if item not in theirs]
    return lines


def _short(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))
