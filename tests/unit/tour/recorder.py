"""Which functions of dra_kit are called, in order, in every thread of this process."""

from __future__ import annotations

import sys
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import dra_kit

ROOT = f"{Path(dra_kit.__file__).parent}/"


def name_of(code: CodeType) -> str:
    """``room/module:Class.function``; empty for what is not dra_kit's."""
    inside = code.co_filename.startswith(ROOT) and not code.co_name.startswith("<")
    return f"{code.co_filename[len(ROOT) :].removesuffix('.py')}:{code.co_qualname}" if inside else ""


@contextmanager
def recorded(functions: Collection[str]) -> Iterator[list[str]]:
    """Record the calls of some functions, a coroutine's each time that it goes on."""
    wanted, known, calls = frozenset(functions), dict[CodeType, str](), list[str]()

    def call(frame: FrameType, event: str, argument: Any) -> None:
        """Record a call of a Python function; a profiler would hear of calls of C, too. No line is traced: None."""
        name = known.get(frame.f_code)
        if name is None:
            name = name_of(frame.f_code)
            name = known[frame.f_code] = name if name in wanted else ""
        if name:
            calls.append(name)

    before, before_of_threads = sys.gettrace(), threading.gettrace()
    threading.settrace(call)
    sys.settrace(call)
    try:
        yield calls
    finally:
        sys.settrace(before)
        threading.settrace(before_of_threads)


def unwalked(hops: Sequence[str], calls: Sequence[str]) -> list[str]:
    """Return the hops from the first one that no call in the rest of the order is for; empty if all were walked."""
    rest = iter(calls)
    for number, hop in enumerate(hops):
        if hop not in rest:
            return list(hops[number:])
    return []
