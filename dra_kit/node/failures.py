"""What is told of work for a claim that failed."""

from __future__ import annotations

import logging

from dra_kit.errors import DraKitError, InternalError
from dra_kit.process.tracebacks import from_author, place_of


def told(error: Exception, message: str, *, module: str, logger: logging.Logger) -> DraKitError:
    """Log an error; the traceback only of a bug, and of what the author's code raised.

    Args:
        error: why the work failed.
        message: what was not done.
        module: of the author's code.
        logger: of whoever did the work.

    Returns:
        The error in a form that users are told.
    """
    cause = error.__cause__
    bug = not isinstance(error, DraKitError) or isinstance(error, InternalError)
    trace = error if bug else cause if not isinstance(cause, DraKitError | None) else None
    problem = error if isinstance(error, DraKitError) else InternalError(f"{type(error).__name__}: {error}")
    fields = {"error": str(problem), "code": problem.code}
    if place := place_of(error, module):
        fields["at"] = place
    logger.error(message, extra=fields, exc_info=from_author(trace, module) if trace else None)
    return problem
