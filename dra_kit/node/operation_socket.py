"""Both ends of the operation socket: JSON over HTTP, for root on the node."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import aiohttp
from aiohttp import web

from dra_kit.client.informer import wait_for_event
from dra_kit.errors import DraKitError, Unavailable
from dra_kit.kubelet.sockets import SocketFile, hidden_link, is_listening
from dra_kit.process.connections import ConnectionLimiter, ConnectionLimits, requests_logger, wait_until_readable
from dra_kit.process.metrics import CONTENT_TYPE

logger: logging.Logger = logging.getLogger(__name__)
Document = Callable[[], Awaitable[Mapping[str, Any]]]
TRY_AGAIN: Final = 60.0
"""Seconds until the socket is tried again if it cannot be created; meanwhile the driver works without it."""
LOOK_EVERY: Final = 10.0
"""Seconds between two checks whether the process behind the link still runs; a check is one system call."""
_BACKLOG: Final = 16
_CONNECTIONS: Final = 32


class OperationServer:
    """A part of the node process: serves the documents, by path, on the operation socket.

    Clients find it at ``link``, which points to the instance that took over last, among those that answer. ``serving``
    is set once this instance has taken over. ``metrics`` returns the text of ``/metrics``, and is called in a thread.
    """

    name = "operation"

    def __init__(
        self,
        path: Path,
        link: Path,
        documents: Mapping[str, Document],
        metrics: Callable[[], bytes],
        serving: asyncio.Event,
    ) -> None:
        self._serving = serving
        self._path = path
        self._link = link
        self._documents = documents
        self._metrics = metrics

    async def run(self, ready: asyncio.Event) -> None:
        """See :class:`dra_kit.process.supervisor.Part`; ready at once: no pod depends on it."""
        ready.set()
        while True:
            try:
                await self._serve()
            except (DraKitError, OSError) as error:
                why = getattr(error, "strerror", None) or str(error)
                logger.error("operation socket cannot be created", extra={"error": why, "path": str(self._path)})
            await asyncio.sleep(TRY_AGAIN)

    async def _serve(self) -> None:
        file = SocketFile(self._path)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
            listening.setblocking(False)

            def listen(address: str) -> None:
                listening.bind(unquote(address.removeprefix("unix:")))

            file.bind(listen)
            listening.listen(_BACKLOG)
            file.publish()
            link = asyncio.create_task(self._maintain_link())
            try:
                await wait_until_readable(listening)  # aiohttp's server is imported only at the first request
                await self._answer_from(listening)
            finally:
                link.cancel()
                self._point_to_another()
                file.remove()

    async def _answer_from(self, listening: socket.socket) -> None:
        app = web.Application()
        app.add_routes([web.get(path, self._report) for path in self._documents])
        app.add_routes([web.get("/metrics", self._serve_metrics)])
        runner = web.AppRunner(app, handle_signals=False, access_log=None, shutdown_timeout=0.1, logger=requests_logger)
        await runner.setup()
        assert runner.server is not None  # noqa: S101 - for type checkers; it has been set up
        try:
            async with ConnectionLimiter(
                runner.server, listening, None, ConnectionLimits(connections=_CONNECTIONS)
            ).serving():
                await asyncio.Event().wait()
        finally:
            await runner.cleanup()

    async def _report(self, request: web.Request) -> web.Response:
        try:
            return web.json_response(await self._documents[request.path]())
        except DraKitError as error:
            return web.Response(status=503, text=f"{error} [{error.code}]\n")

    async def _serve_metrics(self, request: web.Request) -> web.Response:
        del request
        return web.Response(body=await asyncio.to_thread(self._metrics), headers={"Content-Type": CONTENT_TYPE})

    # -- the link

    async def _maintain_link(self) -> None:
        """Point the link here when this instance takes over, and whenever the instance it points to was killed."""
        while not self._serving.is_set():
            self._replace_dead_link()
            await wait_for_event(self._serving, LOOK_EVERY)
        self._point_to(self._path)
        while True:
            await asyncio.sleep(LOOK_EVERY)
            self._replace_dead_link()

    def _replace_dead_link(self) -> None:
        if not self._points_here() and is_listening(self._link) is not True:
            self._point_to(self._path)

    def _points_here(self) -> bool:
        with suppress(OSError):
            return os.readlink(self._link) == self._path.name  # noqa: PTH115 - the text of the link, not its target
        return False

    def _point_to(self, path: Path) -> None:
        """Replace the link atomically; it is relative, so that it works wherever the directory is mounted."""
        new = hidden_link(self._path)
        try:
            new.unlink(missing_ok=True)  # left by a process that was killed here
            new.symlink_to(path.name)
            new.replace(self._link)
        except OSError as error:
            new.unlink(missing_ok=True)
            logger.error(
                "link to the operation socket cannot be created",
                extra={"error": error.strerror, "path": str(self._link)},
            )

    def _point_to_another(self) -> None:
        """Point the link to another instance that answers, or remove it, if it points here or to a killed instance."""
        with suppress(OSError):
            if not self._points_here() and self._link.exists():
                return
            for other in sorted(self._path.parent.glob("ops-*.sock")):
                if other != self._path and is_listening(other) is True:
                    self._point_to(other)
                    return
            self._link.unlink()


WHO: Final = "/v1/who"
"""``{"driver": …, "node": …, "devices": [DeviceUse, …]}``: what is prepared here."""
STATUS: Final = "/v1/status"
"""The status of the driver; see :mod:`dra_kit.node.status` for its content."""
METRICS: Final = "/metrics"
"""The metrics of the process, in the Prometheus text format."""
_BYTES_MAX: Final = 64 * 1024 * 1024


async def ask(socket: Path, path: str, *, timeout: float = 10.0) -> dict[str, Any]:
    """Return the JSON object at a path.

    Args:
        socket: a driver's operation socket, or the link to it.
        path: such as ``WHO``.
        timeout: seconds for the answer.

    Raises:
        Unavailable: the socket does not answer, or the answer is invalid.
    """
    text = await ask_text(socket, path, timeout=timeout)
    try:
        answer = json.loads(text)
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise Unavailable(
            f"{socket} did not answer {path} with a JSON object; is it a dra-kit driver?",
            code="no-answer",
        )
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
                        f"{socket} answered {path} with more than {_BYTES_MAX} bytes; is it a dra-kit driver?",
                        code="no-answer",
                    )
            if response.status != 200:
                text = body.decode(errors="replace").strip()[:500]
                raise Unavailable(f"{socket} answered {path} with status {response.status}: {text}", code="no-answer")
            return body.decode(errors="replace")
    except (OSError, aiohttp.ClientError) as error:
        raise Unavailable(f"no driver answers at {socket}: {_reason(error)}", code="no-answer") from error


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "timeout; the event loop of the driver may be blocked, see its log"
    cause = getattr(error, "os_error", error)
    if isinstance(cause, PermissionError):
        return "permission denied; run as root"
    return f"{getattr(cause, 'strerror', None) or cause}; check that the driver runs on this node"
