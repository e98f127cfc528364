"""What kopf says of its troubles, in our terms and once."""

from __future__ import annotations

import logging
import re
from typing import Final

import aiohttp

from dra_kit.errors import DraKitError, Forbidden, InternalError, NotFound, Unavailable


def explained(error: BaseException) -> Exception:
    """Return what ended kopf as one of our errors; a bug stays what it is.

    kopf's errors are recognized by their names and attributes: most of their classes are private.
    """
    if isinstance(error, DraKitError):
        return error
    text = str(getattr(error, "message", "")) or str(error) or type(error).__name__
    status = getattr(error, "status", None)
    if type(error).__name__ == "LoginError" or status == 401:
        return Forbidden("kopf: the API server does not accept our credentials (401): renew the token or kubeconfig")
    if status == 403:
        return Forbidden(f"kopf: {text}: add get, list and watch for it to the role of this pod", status=403)
    if status == 404:
        return NotFound(f"kopf: {text}: the API server no longer serves what is watched", status=404)
    if isinstance(status, int):
        return Unavailable(f"kopf: the API server answers {status}: {text}", status=status)
    if type(error).__name__ == "WatchingError":
        return Unavailable(f"kopf: {text}")
    if isinstance(error, (aiohttp.ClientError, OSError)):
        return Unavailable(f"kopf: the API server cannot be reached: {text}")
    if isinstance(error, Exception):
        return error
    return InternalError(f"kopf was ended by {type(error).__name__}: {text}")


class Retries(logging.Filter):
    """Lets kopf log once that a request fails, not at each retry; its thread reports what ends it."""

    _noise: Final = re.compile(r"OS signals are ignored|.* has (failed|finished unexpectedly)")
    _attempt: Final = re.compile(r"Request attempt \S+ failed; [^:]*: ")

    def __init__(self) -> None:
        super().__init__()
        self._reported: set[str] = set()

    def forget(self) -> None:
        """Forget the failures: requests work again, and the next failure is news."""
        self._reported.clear()

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the record is news."""
        message = record.getMessage()
        if self._noise.match(message):
            return False
        if not self._attempt.match(message):
            return True
        reason = re.sub(r"\?\S*", "", self._attempt.sub("", message))  # without the query, which holds versions
        if reason in self._reported:
            return False
        self._reported.add(reason)
        return True
