"""Exceptions of an author's code as the author wants to see them: from the author's own first line on."""

from __future__ import annotations

import os
import sysconfig
import traceback
from pathlib import Path
from types import FrameType, TracebackType
from typing import Final

from pydantic import ValidationError

import dra_kit
from dra_kit.author.calling import Escaped
from dra_kit.text import without_paths

_FOREIGN: Final = (
    "<",
    *(
        f"{path}{os.sep}"
        for path in (Path(dra_kit.__file__).parent, *map(sysconfig.get_path, ("stdlib", "purelib", "platlib")))
    ),
)
"""Where code lies that the author did not write: dra-kit, the standard library, what is installed."""


def place_of(error: BaseException, module: str = "") -> str:
    """Return ``file:line`` in the author's code where an error arose, empty when it arose outside of it.

    Of a SyntaxError it is the place in the file that does not parse, with the column.

    Args:
        error: as it was caught.
        module: one of the author's; a driver that is installed lies beside foreign packages.
    """
    if isinstance(error, SyntaxError) and error.filename:
        return ":".join(map(str, filter(None, (error.filename, error.lineno, error.offset))))
    own = [f"{frame.f_code.co_filename}:{line}" for frame, line in traceback.walk_tb(error.__traceback__)
           if _is_authors(frame, module)]  # fmt: skip
    return own[-1] if own else ""


def named(error: BaseException) -> str:
    """Return ``KeyError: 'clock'``, on one line; of pydantic's errors without the values, which may be secrets."""
    if isinstance(error, Escaped):
        return " ".join(error.what.split())
    text = " ".join(_text(error).split())
    return f"{type(error).__name__}{f': {text}' if text else ''}"


def _text(error: BaseException) -> str:
    if not isinstance(error, ValidationError):
        return str(error)
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    return f"{error.title}: " + "; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in problems)


def located(error: BaseException, module: str = "", *, public: bool = False) -> str:
    """Return ``KeyError: 'clock' at file:line``, on one line.

    Args:
        error: as it was caught.
        module: see :func:`place_of`.
        public: for the users of a claim: without the paths in the message, which are the host's. Where it arose is in
            the driver's own code.
    """
    place = place_of(error, module)
    text = without_paths(named(error)) if public else named(error)
    return f"{text}{f' at {place}' if place else ''}"


def raised(error: BaseException, module: str = "", *, public: bool = False) -> str:
    """Return the same with ``raised`` before it, for a text that begins with the method of the author."""
    return f"raised {located(error, module, public=public)}"


def from_author(
    error: BaseException, module: str = ""
) -> tuple[type[BaseException], BaseException, TracebackType | None]:
    """Return ``exc_info`` for a log: the traceback without the frames above the author's first one; whole without such.

    Args:
        error: as it was caught; it is left as it is.
        module: see :func:`place_of`.
    """
    found = error.__traceback__
    while found is not None and not _is_authors(found.tb_frame, module):
        found = found.tb_next
    return type(error), error, found or error.__traceback__


def _is_authors(frame: FrameType, module: str) -> bool:
    package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    return (bool(module) and package == module.partition(".")[0]) or not frame.f_code.co_filename.startswith(_FOREIGN)
