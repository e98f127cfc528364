"""Asking a driver of this node at its operation socket: JSON over HTTP, for root alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import aiohttp

from dra_kit.errors import Unavailable

WHO: Final = "/v1/who"
"""``{"driver": …, "node": …, "devices": [DeviceUse, …]}``: what is prepared here."""
STATUS: Final = "/v1/status"
"""How the driver is; :mod:`dra_kit.operation.status` says what is in it."""
METRICS: Final = "/metrics"
"""The process's numbers, in the text format of Prometheus."""

_BYTES_MAX: Final = 64 * 1024 * 1024


async def ask(socket: Path, path: str, *, timeout: float = 10.0) -> dict[str, Any]:
    """Return the JSON object at a path.

    Args:
        socket: a driver's operation socket, or the link to it.
        path: such as ``WHO``.
        timeout: seconds for the answer.

    Raises:
        Unavailable: nobody answers, or not so.
    """
    text = await ask_text(socket, path, timeout=timeout)
    try:
        answer = json.loads(text)
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise Unavailable(f"{socket} answers {path} with no JSON object; is it a driver of dra-kit?", code="no-answer")
    return answer


async def ask_text(socket: Path, path: str, *, timeout: float = 10.0) -> str:
    """Return the body of the answer; see :func:`ask` for arguments and errors."""
    try:
        async with (
            aiohttp.ClientSession(
                connector=aiohttp.UnixConnector(str(socket)), timeout=aiohttp.ClientTimeout(total=timeout)
            ) as session,
            session.get(f"http://localhost{path}") as response,
        ):
            body = bytearray()
            async for part in response.content.iter_any():
                body += part
                if len(body) > _BYTES_MAX:
                    raise Unavailable(
                        f"{socket} answers {path} with more than {_BYTES_MAX} bytes; is it a driver of dra-kit?",
                        code="no-answer",
                    )
            if response.status != 200:
                text = body.decode(errors="replace").strip()[:500]
                raise Unavailable(f"{socket} answers {path} with status {response.status}: {text}", code="no-answer")
            return body.decode(errors="replace")
    except (OSError, aiohttp.ClientError) as error:
        raise Unavailable(f"no driver answers at {socket}: {_reason(error)}", code="no-answer") from error


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "not in time; the event loop of the driver may be blocked: look at its log"
    cause = getattr(error, "os_error", error)
    if isinstance(cause, PermissionError):
        return "this user may not open it; run as root"
    return f"{getattr(cause, 'strerror', None) or cause}; is the driver running on this node?"
