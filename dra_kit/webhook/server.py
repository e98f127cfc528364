"""The HTTPS server that the API server calls: kopf's handlers behind a strict door.

kopf's own server is not used, because it fails open: a path that belongs to no handler is answered ``allowed: true``.
Its way of parsing bodies cannot be replaced from outside, its limit of 1 MiB is below what a review may have, and for a
new certificate it closes its socket. Any callable that yields client configurations may take its place (kopf's
``WebhookServerProtocol``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Collection, Mapping
from typing import Any, Final, Self

from aiohttp import web

from dra_kit.errors import ConfigurationError
from dra_kit.kube.operator import kopf
from dra_kit.process.listening import bound_socket
from dra_kit.process.watchdog import Watchdog
from dra_kit.values.json import loads
from dra_kit.webhook.certificate import ServerCertificate

logger = logging.getLogger(__name__)

_LARGEST_REVIEW: Final = 8 * 1024 * 1024  # two objects of at most 3 MiB each (the API server's limit), and the rest
_DRAIN_SECONDS: Final = 5.0  # a review has five seconds: timeoutSeconds of the configuration


class ReviewServer:
    """Serves reviews on known paths, and ``GET /readyz``; everything else is refused.

    Args:
        certificate: of the server.
        host: address to listen on; empty for all, IPv4 and IPv6.
        port: to listen on; 0 for a free one.
        webhooks: ids of the handlers, which are their paths too.
        resources: (plural) names in resource.k8s.io that the handlers are for.
        watchdog: watches the loop that reviews are answered in.
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
        resources: Collection[str],
        watchdog: Watchdog,
        reread_seconds: float = 10.0,
    ) -> None:
        self._certificate = certificate
        self._webhooks = frozenset(webhooks)
        self._resources = frozenset(resources)
        self._watchdog = watchdog
        self._reread_seconds = reread_seconds
        self._runner: web.AppRunner | None = None
        self._serving = False
        self._socket = bound_socket(host, port, who="webhook", remedy="give another --host or --port")

    @property
    def port(self) -> int:
        """The port it listens on."""
        return int(self._socket.getsockname()[1])

    def not_serving(self) -> list[str]:
        """A line while no reviews are answered; may be asked from any thread."""
        return [] if self._serving else ["no reviews are served"]

    def close(self) -> None:
        """Gives the port back; for a server that was never entered."""
        self._socket.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
        self.close()

    async def __call__(self, review: kopf.WebhookFn) -> AsyncIterator[kopf.WebhookClientConfig]:
        """Serves until cancelled; called by kopf once it knows the API server's resources.

        Args:
            review: kopf's function, which calls the handlers.

        Yields:
            An empty client configuration: who calls us is not kopf's to manage.
        """

        async def answer(request: web.Request) -> web.Response:
            return await self._answer(review, request)

        app = web.Application(client_max_size=_LARGEST_REVIEW)
        app.add_routes([web.get("/readyz", _ready), *(web.post(f"/{each}", answer) for each in sorted(self._webhooks))])
        runner = web.AppRunner(app, handle_signals=False, access_log=None, shutdown_timeout=_DRAIN_SECONDS)
        self._runner = runner
        await runner.setup()
        await web.SockSite(runner, self._socket, ssl_context=self._certificate.context).start()
        logger.info("serving admission reviews", extra={"port": self.port})
        self._serving = True
        try:
            yield kopf.WebhookClientConfig()
            await asyncio.gather(self._watchdog.run(asyncio.Event()), self._follow_certificate())
        finally:
            self._serving = False

    async def _follow_certificate(self) -> None:
        told = ""
        while True:
            await asyncio.sleep(self._reread_seconds)
            try:
                changed = await self._certificate.refresh()
            except ConfigurationError as error:
                if str(error) != told:  # once, not every time it is looked at
                    logger.warning("keeping the last certificate", extra={"error": str(error)})
                told = str(error)
            else:
                told = ""
                if changed:
                    logger.info("certificate renewed")

    async def _answer(self, review: kopf.WebhookFn, request: web.Request) -> web.Response:
        try:
            body = loads(await request.read())
        except ValueError as error:
            return _bad_request(f"the body is no JSON: {error}")
        problem = self._problem(body)
        if problem:
            return _bad_request(problem)
        try:
            response = await review(body, webhook=request.path.removeprefix("/"), headers=dict(request.headers))
        except Exception as error:  # no answer at all is worse: the API server would wait for its time-out
            logger.exception("review failed")
            return web.Response(status=500, text=f"the review failed: {' '.join(str(error).split())}\n")
        return web.json_response(response)

    def _problem(self, body: Any) -> str:
        """Why a body is no AdmissionReview that can be answered; empty when it is one.

        The API server never sends such a body. Who else does must not be answered ``allowed: true``.
        """
        if _text(body, "kind") != "AdmissionReview" or _text(body, "apiVersion") != "admission.k8s.io/v1":
            return "the body is no AdmissionReview of admission.k8s.io/v1"
        request = body.get("request")
        for key in ("uid", "operation"):
            if not _text(request, key):
                return f"request.{key} is missing"
        resource = request.get("resource")
        for key in ("group", "version", "resource"):
            if not _text(resource, key):
                return f"request.resource.{key} is missing"
        if resource["group"] != "resource.k8s.io" or resource["resource"] not in self._resources:
            return f"{resource['resource']}.{resource['group']} is not checked here"
        if not isinstance(request.get("userInfo"), Mapping):
            return "request.userInfo is missing"
        wanted = "oldObject" if request["operation"] == "DELETE" else "object"
        if not isinstance(request.get(wanted), Mapping):
            return f"request.{wanted} is missing"
        for key in ("object", "oldObject"):
            if request.get(key) is not None and not isinstance(request[key], Mapping):
                return f"request.{key} is no object"
        return ""


def _text(obj: Any, key: str) -> str:
    value = obj.get(key) if isinstance(obj, Mapping) else None
    return value if isinstance(value, str) else ""


def _bad_request(text: str) -> web.Response:
    return web.Response(status=400, text=f"{text}\n")


async def _ready(_: web.Request) -> web.Response:
    return web.Response(text="ok\n")
