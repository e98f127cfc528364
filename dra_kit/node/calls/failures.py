"""Work for a claim that failed: what the log and the user get of its error."""

from __future__ import annotations

import logging
from typing import Final

from dra_kit.errors import DraKitError, InternalError, InvalidConfig, PrepareError
from dra_kit.process.tracebacks import from_author, place_of
from dra_kit.text import shorten, without_paths

MESSAGE_BYTES: Final = 4096
"""Bytes that are stored of an error; its readers may get less."""


def public_text(error: DraKitError) -> str:
    """Return what the users of a claim read of an error; paths are left in what was written for them."""
    return error.public if isinstance(error, PrepareError) else without_paths(error.public)


def log_failure(error: Exception, message: str, *, module: str, logger: logging.Logger) -> DraKitError:
    """Log an error; the traceback only of a bug, and of what the author's code raised.

    Of a config that does not fit its model the log names the fields, and quotes nothing.

    That is all that is stored of its cause: a call has hundreds of claims, and an author's error any length.

    Args:
        error: why the work failed.
        message: what was not done.
        module: of the author's code.
        logger: of whoever did the work.

    Returns:
        The error in a form that users read: in a text of bounded length, and without causes.
    """
    cause = error.__cause__
    bug = not isinstance(error, DraKitError) or isinstance(error, InternalError)
    trace = error if bug else cause if not isinstance(cause, DraKitError | None) else None
    problem = error if isinstance(error, DraKitError) else InternalError(f"{type(error).__name__}: {error}")
    problem.message = shorten(problem.message, MESSAGE_BYTES)
    problem.public = shorten(public_text(problem), MESSAGE_BYTES)
    problem.args = (problem.message,)
    fields: dict[str, object] = {"error": str(problem), "code": problem.code}
    if isinstance(error, InvalidConfig) and error.problems:  # not the text: what it quotes may be a secret
        del fields["error"]
        fields["fields"] = list(dict.fromkeys(error.places))
    if isinstance(problem, PrepareError) and problem.permanent:
        fields["permanent"] = True
    if place := place_of(error, module):
        fields["at"] = place
    logger.error(message, extra=fields, exc_info=from_author(trace, module) if trace else None)
    problem.__cause__ = problem.__context__ = problem.__traceback__ = None
    return problem
