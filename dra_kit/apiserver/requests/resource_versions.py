"""Resource versions in queries."""

from __future__ import annotations

from typing import Final

from dra_kit.apiserver.answers import Refusal, bad_request

EXPIRED: Final = "The resourceVersion for the provided list is too old."
CONTINUE_EXPIRED: Final = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new list without "
    "the continue parameter, or use the continue token in this response to retrieve the remainder of the results. "
    "Continuing with the provided token results in an inconsistent list - objects that were created, modified, or "
    "deleted between the time the first chunk was returned and now may show up in the list."
)


def parse_version(text: str, *, code: int) -> int:
    """Return a resource version; empty is 0.

    Args:
        text: as in the query.
        code: HTTP status when it is no number: 400 for lists, 500 elsewhere.

    Raises:
        Refusal: it is no number.
    """
    if not text:
        return 0
    if not text.isdecimal():
        message = f'resourceVersion: Invalid value: "{text}": strconv.ParseUint: parsing "{text}": invalid syntax'
        raise bad_request(f"invalid resource version: {message}") if code == 400 else Refusal(code, "", message)
    return int(text)


def too_large(asked: int, current: int) -> Refusal:
    """Return 504 for a version of the future."""
    message = f"Timeout: Too large resource version: {asked}, current: {current}"
    cause = {"reason": "ResourceVersionTooLarge", "message": "Too large resource version", "field": ""}
    return Refusal(504, "Timeout", message, {"causes": [cause], "retryAfterSeconds": 1})
