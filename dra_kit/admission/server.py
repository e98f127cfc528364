"""The HTTPS server that the API server calls: kopf's handlers behind a strict door.

kopf's own server is not used, because it fails open: a path that belongs to no handler is answered ``allowed: true``.
Its way of parsing bodies cannot be replaced from outside, its limit of 1 MiB is below what a review may have, and for a
new certificate it closes its socket. Any callable that yields client configurations may take its place (kopf's
``WebhookServerProtocol``).

kopf compares old and new object key by key, in the loop, and remembers each UID for good. So objects are checked in the
threads of the queue, right after they are read, and kopf is given their names and the verdict, and nothing else.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping
from functools import partial
from typing import Any, Final, Self, TypeAlias

from aiohttp import web

from dra_kit.errors import ConfigurationError
from dra_kit.kube.operator.operator import kopf
from dra_kit.kube.resources import Resource
from dra_kit.process.listening import bound_socket
from dra_kit.process.metrics.families import REVIEW_DURATION, Reading
from dra_kit.process.metrics.measures import REVIEW_SECONDS, Durations
from dra_kit.process.watchdog import Watchdog
from dra_kit.serving.connections import ConnectionLimits, Connections, requests_logger
from dra_kit.webhook.bodies import LARGEST_BYTES, Bodies
from dra_kit.webhook.certificates.server_certificate import ServerCertificate
from dra_kit.webhook.queue import Overloaded, ReviewQueue
from dra_kit.webhook.request import NotAReview, read, seconds
from dra_kit.webhook.review import Refusal, named

logger: logging.Logger = logging.getLogger(__name__)

VERDICT: Final = "verdict"
"""The key of an object that kopf gets, with the :class:`Refusal` of the review, or None."""

Check: TypeAlias = Callable[[Mapping[str, Any], Mapping[str, Any] | None, str], Refusal | None]
"""Why a request must be refused, by its object, the object that it replaces, and the operation."""

_REFUSED: Final = "refused"  # key of the audit annotation
_STOP_SECONDS: Final = 5.0
_PUT_OFF_SECONDS: Final = 1.0
"""How long a review that cannot be answered in time waits for its 503, so that trying again at once gains nothing."""

_KEPT: Final = ("uid", "operation", "kind", "resource", "subResource", "dryRun", "name", "namespace")
"""What kopf gets of a request, beside its objects."""


class ReviewServer:
    """Serves reviews on known paths, and ``GET /readyz``; everything else is refused.

    Args:
        certificate: of the server.
        host: address to listen on; empty for all, IPv4 and IPv6.
        port: to listen on; 0 for a free one.
        webhooks: ids of the handlers, which are their paths too.
        resources: that the handlers are for.
        check: checks objects; called in the threads of the queue.
        queue: where reviews are read and checked; the caller closes it.
        watchdog: watches the loop that reviews are answered in.
        limits: of connections.
        reread_seconds: how often the certificate's files are looked at.

    Raises:
        ConfigurationError: the port is in use or may not be used, or there is no such address.
    """

    def __init__(
        self,
        certificate: ServerCertificate,
        *,
        host: str,
        port: int,
        webhooks: Collection[str],
        resources: Collection[Resource],
        check: Check,
        queue: ReviewQueue,
        watchdog: Watchdog,
        limits: ConnectionLimits = ConnectionLimits(),  # noqa: B008 - it is frozen
        reread_seconds: float = 10.0,
    ) -> None:
        self._certificate = certificate
        self._webhooks = frozenset(webhooks)
        self._resources = tuple(resources)
        self._check = check
        self._queue = queue
        self._limits = limits
        self._bodies = Bodies()
        self._watchdog = watchdog
        self._reread_seconds = reread_seconds
        self._runner: web.AppRunner | None = None
        self._serving = False
        self._seconds = {result: Durations(REVIEW_SECONDS) for result in ("allowed", "refused", "error")}
        self._socket = bound_socket(host, port, who="webhook", remedy="give another --host or --port")

    @property
    def port(self) -> int:
        """The port it listens on."""
        return int(self._socket.getsockname()[1])

    def not_serving(self) -> list[str]:
        """Return a line while no reviews are answered; may be asked from any thread."""
        return [] if self._serving else ["no reviews are served"]

    def readings(self) -> Iterator[Reading]:
        """Yield how long reviews took, by what they came to; from any thread."""
        for result, durations in self._seconds.items():
            yield REVIEW_DURATION.of(durations, result)

    def close(self) -> None:
        """Give the port back; for a server that was never entered."""
        self._socket.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
        self.close()

    async def __call__(self, review: kopf.WebhookFn) -> AsyncIterator[kopf.WebhookClientConfig]:
        """Serve until cancelled; called by kopf once it knows the API server's resources.

        Args:
            review: kopf's function, which calls the handlers.

        Yields:
            An empty client configuration: who calls us is not kopf's to manage.
        """

        async def answer(request: web.Request) -> web.Response:
            deadline = time.monotonic() + seconds(request.query.get("timeout", ""))
            async with self._bodies.read(request) as body:
                return await self._answer(review, request, body, deadline)

        app = web.Application(client_max_size=LARGEST_BYTES)
        app.add_routes([web.get("/readyz", _ready), *(web.post(f"/{each}", answer) for each in sorted(self._webhooks))])
        runner = web.AppRunner(
            app, handle_signals=False, access_log=None, shutdown_timeout=_STOP_SECONDS, auto_decompress=False,
            logger=requests_logger,
            handler_cancellation=True,  # a review whose client is gone is not checked
        )  # fmt: skip
        self._runner = runner
        await runner.setup()
        assert runner.server is not None  # noqa: S101 - for type checkers; it has been set up
        connections = Connections(runner.server, self._socket, self._certificate.context, self._limits)
        async with connections.serving():
            logger.info("serving admission reviews", extra={"port": self.port})
            self._serving = True
            try:
                yield kopf.WebhookClientConfig()
                await asyncio.gather(self._watchdog.run(asyncio.Event()), self._follow_certificate())
            finally:
                self._serving = False

    async def _follow_certificate(self) -> None:
        reported = ""
        while True:
            await asyncio.sleep(self._reread_seconds)
            try:
                changed = await self._certificate.refresh()
            except ConfigurationError as error:
                if str(error) != reported:  # once, not every time it is looked at
                    logger.warning("keeping the last certificate", extra={"error": str(error)})
                reported = str(error)
            else:
                reported = ""
                if changed:
                    logger.info("certificate renewed")

    async def _answer(self, review: kopf.WebhookFn, request: web.Request, body: bytes, deadline: float) -> web.Response:
        began = time.monotonic()
        response = await self._reviewed(review, request, body, deadline)
        if isinstance(response, web.Response):
            result = "error"
        else:
            allowed = bool(response.get("response", {}).get("allowed"))
            result = "allowed" if allowed else "refused"
            response = web.json_response(response if allowed else _audited(response))
        self._seconds[result].add(time.monotonic() - began)
        return response

    async def _reviewed(
        self, review: kopf.WebhookFn, request: web.Request, body: bytes, deadline: float
    ) -> web.Response | Mapping[str, Any]:
        """Return the review's answer, or why there is none."""
        webhook = request.path.removeprefix("/")
        peer = request.remote or ""
        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                try:
                    given: Any = await self._queue.run(
                        partial(self._examine, body), size=len(body), peer=peer, deadline=deadline
                    )
                except NotAReview as error:
                    return _bad_request(str(error))
                except Overloaded:
                    await asyncio.sleep(_PUT_OFF_SECONDS)
                    return _too_many()
                return await review(given, webhook=webhook, headers=dict(request.headers))
        except TimeoutError:
            return _too_many()
        except RecursionError:  # of a review that is nested so deeply that it could just be read
            return _bad_request("the review is nested too deeply")
        except Exception as error:  # no answer at all is worse: the API server would wait for its time-out
            logger.exception("review failed")
            return web.Response(status=500, text=f"the review failed: {' '.join(str(error).split())}\n")

    def _examine(self, body: bytes) -> dict[str, Any]:
        """Return the review for kopf, with the verdict about its objects in place of their content."""
        review = read(body, self._resources)
        request = review["request"]
        objects = {key: request[key] for key in ("object", "oldObject") if request.get(key) is not None}
        looked_at = objects.get("object") or objects["oldObject"]
        verdict = self._check(looked_at, objects.get("oldObject"), request["operation"])
        return {
            "apiVersion": review["apiVersion"],
            "kind": review["kind"],
            "request": {
                **{key: request[key] for key in _KEPT if key in request},
                "userInfo": {"username": request["userInfo"].get("username")},
                **{key: {**named(obj), VERDICT: verdict} for key, obj in objects.items()},
            },
        }


def _audited(review: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a refusal with its reason as an audit annotation, ``<the webhook's name>/refused``.

    The API server's audit log has that at every level of its policy but None (admission.k8s.io/v1, auditAnnotations).
    """
    response = review["response"]
    annotations = {_REFUSED: str((response.get("status") or {}).get("message") or "")}
    return {**review, "response": {**response, "auditAnnotations": annotations}}


def _too_many() -> web.Response:
    return web.Response(status=503, text="too many reviews at once; try again\n", headers={"Retry-After": "1"})


def _bad_request(text: str) -> web.Response:
    return web.Response(status=400, text=f"{text}\n")


async def _ready(_: web.Request) -> web.Response:
    return web.Response(text="ok\n")
