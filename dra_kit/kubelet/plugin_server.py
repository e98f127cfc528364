"""Turns what a ``NodeService`` returns or raises into exactly one answer per claim the kubelet asked for.

The kubelet aborts the start of the pod on an answer that lacks a claim or has one it did not ask for, and takes an
empty error for success (kubelet 1.37, ``pkg/kubelet/cm/dra/manager.go``). So nothing a service does may lead to either.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, TypeVar

from dra_kit.errors import DraKitError, InternalError
from dra_kit.kubernetes.resource.objects import ClaimReference
from dra_kit.plugin.messages import device_message
from dra_kit.plugin.service import NodeService, PreparedDevice
from dra_kit.proto import dra_v1_pb2 as v1
from dra_kit.text import shorten, without_paths

logger: logging.Logger = logging.getLogger(__name__)

T = TypeVar("T")

ERROR_BYTES: Final = 1024
"""Bytes of a claim's error. The kubelet makes an Event of it, and takes an answer of 4 MiB for all claims of a call."""

_BUG: Final = "this is a bug in dra-kit, please report it"


async def prepare(service: NodeService, claims: Sequence[ClaimReference]) -> dict[str, list[v1.Device] | str]:
    """Answer NodePrepareResources: by claim UID, the prepared devices or the text of an error."""
    return await _answer("prepare", service.prepare, claims, _devices)


async def unprepare(service: NodeService, claims: Sequence[ClaimReference]) -> dict[str, str | None]:
    """Answer NodeUnprepareResources: by claim UID, None or the text of an error."""
    return await _answer("unprepare", service.unprepare, claims, _nothing)


def error_text(error: Exception, doing: str) -> str:
    """Return one line about an exception, for the ``error`` of a claim and the Event the kubelet makes of it.

    It is never empty, and never longer than ``ERROR_BYTES``: what is too long loses its middle.

    Args:
        error: of a ``DraKitError`` the public text is taken; any other class is a bug.
        doing: what was being done, for example ``prepare of ResourceClaim default/oven``.
    """
    line = _one_line(error.public if isinstance(error, DraKitError) else without_paths(str(error)))
    if isinstance(error, DraKitError) and not isinstance(error, InternalError):
        return sendable(line or f"{doing}: failed with code {error.code} and without a message")
    logger.error("%s: %s", doing, _BUG, exc_info=error)
    what = [line] if isinstance(error, InternalError) else [type(error).__name__, line]
    return sendable(": ".join(filter(None, [doing, *what])) + f" ({_BUG})")


def _one_line(text: str) -> str:
    return "; ".join(filter(None, map(str.strip, text.splitlines())))


def sendable(text: str) -> str:
    """Return a text as it can be sent: one line of at most ``ERROR_BYTES``; one that is too long loses its middle."""
    # protobuf strings are UTF-8, and messages may quote file names with undecodable bytes
    return shorten(_one_line(text).encode("utf-8", "backslashreplace").decode("utf-8"), ERROR_BYTES)


async def _answer(
    verb: str,
    call: Callable[[Sequence[ClaimReference]], Awaitable[Mapping[str, object]]],
    claims: Sequence[ClaimReference],
    check: Callable[[object], T],
) -> dict[str, T | str]:
    asked, answers = _well_formed(claims)
    answered: dict[str, T | str] = dict(answers)
    if not asked:
        return answered
    try:
        results = await call(list(asked.values()))
        unasked = results.keys() - asked.keys()
    except Exception as error:  # noqa: BLE001 (whatever a service raises becomes the answer of its claims)
        text = error_text(error, f"{verb} of {len(asked)} ResourceClaims" if len(asked) > 1 else _doing(verb, asked))
        return answered | dict.fromkeys(asked, text)
    if unasked:
        logger.error("%s answered for claims nobody asked for: %s: %s", verb, ", ".join(map(str, unasked)), _BUG)
    for uid, claim in asked.items():
        try:
            answered[uid] = _result(results, uid, check)
        except Exception as error:  # noqa: BLE001 (likewise)
            answered[uid] = error_text(error, _doing(verb, {uid: claim}))
    return answered


def _well_formed(claims: Sequence[ClaimReference]) -> tuple[dict[str, ClaimReference], dict[str, str]]:
    """Return claims to hand to the service, by UID and once each, and the errors of the others."""
    asked: dict[str, ClaimReference] = {}
    errors: dict[str, str] = {}
    for claim in claims:
        missing = [field for field in ("namespace", "name", "uid") if not getattr(claim, field)]
        if missing:
            errors[claim.uid] = sendable(
                f"the request names ResourceClaim {str(claim)!r} without {' and '.join(missing)}"
            )
        elif asked.setdefault(claim.uid, claim) != claim:
            errors[claim.uid] = sendable(
                f"the request names UID {claim.uid} twice, as {asked[claim.uid]} and as {claim}"
            )
    for uid in errors:
        asked.pop(uid, None)
    return asked, errors


def _result(results: Mapping[str, object], uid: str, check: Callable[[object], T]) -> T:
    if uid not in results:
        raise InternalError("the node service gave no answer")
    result = results[uid]
    if isinstance(result, Exception):
        raise result
    return check(result)


def _devices(result: object) -> list[v1.Device]:
    if not isinstance(result, Sequence) or not all(isinstance(device, PreparedDevice) for device in result):
        raise InternalError(f"the node service answered {result!r} instead of prepared devices")
    return [device_message(device) for device in result]


def _nothing(result: object) -> None:
    if result is not None:
        raise InternalError(f"the node service answered {result!r} instead of None")


def _doing(verb: str, asked: Mapping[str, ClaimReference]) -> str:
    return f"{verb} of ResourceClaim {next(iter(asked.values()))}"
