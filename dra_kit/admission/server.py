"""The HTTPS server that the API server calls: kopf's handlers behind strict limits for connections and requests."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from http import HTTPStatus
from typing import Any, Final, Self, TypeAlias

from aiohttp import web
from prometheus_client import Metric

from dra_kit.admission.certificates import ServerCertificate
from dra_kit.admission.review import REVIEWED, VERSIONS, WEBHOOK_ID, WEBHOOK_PATH, ReviewRejection, object_identity
from dra_kit.admission.review_queue import ORDINARY_BYTES, ReviewQueue, ReviewQueueOverload
from dra_kit.client.operator import kopf
from dra_kit.client.resources import Resource
from dra_kit.errors import ConfigurationError
from dra_kit.kubernetes.values.json import loads
from dra_kit.process.connections import ConnectionLimiter, ConnectionLimits, bound_socket, requests_logger
from dra_kit.process.metrics import REVIEW_DURATION
from dra_kit.process.probes import LoopWatchdog

logger: logging.Logger = logging.getLogger(__name__)
VERDICT: Final = "verdict"
"""The key of an object that kopf gets, with the :class:`ReviewRejection` of the review, or None."""
Check: TypeAlias = Callable[[Mapping[str, Any], Mapping[str, Any] | None, str], ReviewRejection | None]
"""Why a request must be refused, by its object, the object that it replaces, and the operation."""
_KEPT: Final = ("uid", "operation", "kind", "resource", "subResource", "dryRun", "name", "namespace")
"""What kopf gets of a request, beside its objects."""


class ReviewServer:
    """Serves reviews on the path of the webhook, and ``GET /readyz``; all other requests are rejected.

    ``check`` is called in the threads of ``queue``, which the caller closes.

    Raises:
        ConfigurationError: the port is in use or may not be used, or the address does not exist.
    """

    def __init__(
        self,
        certificate: ServerCertificate,
        *,
        host: str,
        port: int,
        check: Check,
        queue: ReviewQueue,
        watchdog: LoopWatchdog,
        limits: ConnectionLimits = ConnectionLimits(),  # noqa: B008 - it is frozen
        reread_seconds: float = 10.0,
    ) -> None:
        self._certificate = certificate
        self._check = check
        self._queue = queue
        self._limits = limits
        self._bodies = BodyReader()
        self._watchdog = watchdog
        self._reread_seconds = reread_seconds
        self._runner: web.AppRunner | None = None
        self._serving = False
        self._seconds = REVIEW_DURATION.histogram()
        for result in ("allowed", "refused", "error"):
            self._seconds.labels(result)  # from the start, as 0
        self._socket = bound_socket(host, port, who="webhook", remedy="give another --host or --port")

    @property
    def port(self) -> int:
        """The port it listens on."""
        return int(self._socket.getsockname()[1])

    def not_serving(self) -> list[str]:
        """Return a line while no reviews are answered; from any thread."""
        return [] if self._serving else ["no reviews are served"]

    def readings(self) -> Iterable[Metric]:
        """Return how long reviews took, by their result; from any thread."""
        return self._seconds.collect()

    def close(self) -> None:
        """Close the socket, for a server that was never entered."""
        self._socket.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
        self.close()

    async def __call__(self, review: kopf.WebhookFn) -> AsyncIterator[kopf.WebhookClientConfig]:
        """Serve until cancelled; kopf calls it with its function for reviews once it knows the API server's resources.

        Yields:
            An empty client configuration: who calls us is not kopf's to manage.
        """

        async def answer(request: web.Request) -> web.Response:
            deadline = time.monotonic() + seconds(request.query.get("timeout", ""))
            try:
                async with self._bodies.read(request) as body:
                    return await self._answer(review, request, body, deadline)
            except BodyRejection as rejection:
                return rejection.response()

        app = web.Application(client_max_size=LARGEST_BYTES)
        app.add_routes([web.get("/readyz", _ready), web.post(WEBHOOK_PATH, answer)])
        runner = web.AppRunner(
            app, handle_signals=False, access_log=None, shutdown_timeout=5.0, auto_decompress=False,
            logger=requests_logger,
            handler_cancellation=True,  # a review whose client is gone is not checked
        )  # fmt: skip
        self._runner = runner
        await runner.setup()
        assert runner.server is not None  # noqa: S101 - for type checkers; it has been set up
        connections = ConnectionLimiter(runner.server, self._socket, self._certificate.context, self._limits)
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
        self._seconds.labels(result).observe(time.monotonic() - began)
        return response

    async def _reviewed(
        self, review: kopf.WebhookFn, request: web.Request, body: bytes, deadline: float
    ) -> web.Response | Mapping[str, Any]:
        """Return the review's answer, or why there is none."""
        peer = request.remote or ""
        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                try:
                    examine = partial(self._examine, body)
                    async with self._queue.turn(examine, size=len(body), peer=peer, deadline=deadline) as found:
                        given: Any = found
                        return await review(given, webhook=WEBHOOK_ID, headers=dict(request.headers))
                except InvalidReview as error:
                    return _bad_request(str(error))
                except ReviewQueueOverload:
                    await asyncio.sleep(1.0)  # so that a client gains nothing by trying again at once
                    return _too_many()
        except TimeoutError:
            return _too_many()
        except RecursionError:  # of a review that is nested so deeply that it could just be read
            return _bad_request("the review is nested too deeply")
        except Exception as error:  # no answer at all is worse: the API server would wait for its time-out
            logger.exception("review failed")
            return web.Response(status=500, text=f"the review failed: {' '.join(str(error).split())}\n")

    def _examine(self, body: bytes) -> dict[str, Any]:
        """Return the review for kopf, with the verdict about its objects in place of their content."""
        review = read_review(body)
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
                **{key: {**object_identity(obj), VERDICT: verdict} for key, obj in objects.items()},
            },
        }


def _audited(review: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a refusal with its reason as an audit annotation, ``<the webhook's name>/refused``.

    The API server's audit log has that at every level of its policy but None (admission.k8s.io/v1, auditAnnotations).
    """
    response = review["response"]
    annotations = {"refused": str((response.get("status") or {}).get("message") or "")}
    return {**review, "response": {**response, "auditAnnotations": annotations}}


def _too_many() -> web.Response:
    return web.Response(status=503, text="too many reviews at once; try again\n", headers={"Retry-After": "1"})


def _bad_request(text: str) -> web.Response:
    return web.Response(status=400, text=f"{text}\n")


async def _ready(_: web.Request) -> web.Response:
    return web.Response(text="ok\n")


_MOST_VALUES: Final = 1_000_000
"""Values in a review, about. Two objects of all that the API server lets pass have 600,000; each may take 120 bytes."""
# Other operations are rejected: their effect on configs is unknown. A deletion needs no check; it is answered because
# webhook configurations may match all operations.
_OPERATIONS: Final = frozenset({"CREATE", "UPDATE", "DELETE"})
_DURATION: Final = re.compile(r"([0-9]{1,9})(s|ms)")


class InvalidReview(ValueError):
    """A body that is not a valid AdmissionReview; the message says why, in one line."""


def seconds(timeout: str) -> float:
    """Return how long an API server waits for an answer, by the ``timeout`` of its URL, such as ``5s``.

    Source: k8s.io/apiserver 0.37 ``pkg/admission/plugin/webhook/validating/dispatcher.go``.
    """
    match = _DURATION.fullmatch(timeout)
    if match is None:
        return 5.0  # timeoutSeconds of the configuration
    return min(int(match[1]) * (0.001 if match[2] == "ms" else 1.0), 30.0)  # the most that the API lets pass


def read_review(body: bytes) -> dict[str, Any]:
    """Return the AdmissionReview in a body.

    The API server never sends bodies that are rejected here. Other clients must not get ``allowed: true`` for them.

    Raises:
        InvalidReview: the body is not a review of an object that carries configs.
    """
    if sum(map(body.count, (b",", b"[", b"{"))) > _MOST_VALUES:
        raise InvalidReview(f"the body has more than {_MOST_VALUES} values")
    try:
        review: dict[str, Any] = loads(body)
    except ValueError as error:
        raise InvalidReview(f"the body is not valid JSON: {error}") from None
    if _text(review, "kind") != "AdmissionReview" or _text(review, "apiVersion") != "admission.k8s.io/v1":
        raise InvalidReview("the body is not an AdmissionReview of admission.k8s.io/v1")
    request: Any = review.get("request")
    for key in ("uid", "operation"):
        if not _text(request, key):
            raise InvalidReview(f"request.{key} is missing")
    _check(request)
    return review


def _check(request: Mapping[str, Any]) -> None:
    if request["operation"] not in _OPERATIONS:
        raise InvalidReview(f"operation {request['operation']!r:.80} is not checked here")
    resource = _check_resource(request)
    _check_kind(request, resource)
    if not isinstance(request.get("userInfo"), Mapping):
        raise InvalidReview("request.userInfo is missing")
    wanted = "oldObject" if request["operation"] == "DELETE" else "object"
    if not isinstance(request.get(wanted), Mapping):
        raise InvalidReview(f"request.{wanted} is missing")
    api_version = f"{resource.group}/{request['resource']['version']}"
    for key in ("object", "oldObject"):
        obj = request.get(key)
        if obj is None:
            continue
        if not isinstance(obj, Mapping):
            raise InvalidReview(f"request.{key} is not an object")
        if (obj.get("apiVersion"), obj.get("kind")) != (api_version, resource.kind):
            raise InvalidReview(f"request.{key} is not a {resource.kind} of {api_version}")


def _check_resource(request: Mapping[str, Any]) -> Resource:
    """Return what the review is about; ``request…`` is what the user asked for, which may be in another version."""
    asked = request.get("resource")
    for key in ("group", "version", "resource"):
        if not _text(asked, key):
            raise InvalidReview(f"request.resource.{key} is missing")
    by_name = {(resource.group, resource.plural): resource for resource in REVIEWED}
    resource = by_name.get((_text(asked, "group"), _text(asked, "resource")))
    if resource is None or _text(asked, "version") not in VERSIONS:
        raise InvalidReview(
            f"{'.'.join(_text(asked, key) for key in ('resource', 'version', 'group')):.200} is not checked"
        )
    for key in ("subResource", "requestSubResource"):
        if request.get(key):
            raise InvalidReview(f"request.{key} is given, and subresources are not checked here; do not ask about them")
    original = request.get("requestResource", asked)
    if (_text(original, "group"), _text(original, "resource")) != (resource.group, resource.plural):
        raise InvalidReview(f"request.requestResource is not a {resource.full_name}")
    return resource


def _check_kind(request: Mapping[str, Any], resource: Resource) -> None:
    kind = request.get("kind")
    if kind != {"group": resource.group, "version": request["resource"]["version"], "kind": resource.kind}:
        raise InvalidReview(f"request.kind is not that of {resource.full_name}")
    original = request.get("requestKind", kind)
    if (_text(original, "group"), _text(original, "kind")) != (resource.group, resource.kind):
        raise InvalidReview(f"request.requestKind is not that of {resource.full_name}")


def _text(obj: Any, key: str) -> str:
    value = obj.get(key) if isinstance(obj, Mapping) else None
    return value if isinstance(value, str) else ""


LARGEST_BYTES: Final = 8 * 1024 * 1024  # two objects of at most 3 MiB each (the API server's limit), and the rest
_TOGETHER_BYTES: Final = 32 * 1024 * 1024
_ADDRESS_BYTES: Final = 16 * 1024 * 1024


class BodyReader:
    """Limits the memory of bodies that are being read or that wait in the queue.

    Ordinary bodies are always accepted, since the number of connections bounds their total size. Large bodies share a
    budget, which is counted while they are received. One address gets at most half of the budget.
    """

    def __init__(self) -> None:
        self._held: Counter[str] = Counter()

    @asynccontextmanager
    async def read(self, request: web.Request) -> AsyncIterator[bytes]:
        """Yield the body of a request; it counts towards the budget until the block ends.

        Raises:
            BodyRejection: the body is compressed (the API server never compresses, and a few bytes could expand to
                millions), is larger than any review, or the budget for large bodies is used up.
        """
        if request.headers.get("Content-Encoding", "identity").lower() != "identity":
            raise BodyRejection(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "compressed bodies are not read; send it as it is")
        if (request.content_length or 0) > LARGEST_BYTES:
            raise _too_large(request.content_length or 0)
        body = bytearray()
        held = 0
        peer = request.remote or ""
        try:
            async for chunk in request.content.iter_any():
                body += chunk
                if len(body) > LARGEST_BYTES:
                    raise _too_large(len(body))
                if len(body) > ORDINARY_BYTES:
                    self._held[peer] += len(body) - held
                    held = len(body)
                if held and (self._held[peer] > _ADDRESS_BYTES or self._held.total() > _TOGETHER_BYTES):
                    raise BodyRejection(HTTPStatus.SERVICE_UNAVAILABLE, "too many large reviews at once; try again")
            whole = bytes(body)
            chunk = b""
            body.clear()  # so that it is in memory once
            yield whole
        finally:
            self._held[peer] -= held
            if not self._held[peer]:
                del self._held[peer]


class BodyRejection(Exception):
    """A body is not read; the status and text of the answer say why.

    It is not aiohttp's ``HTTPException``: aiohttp answers with that itself, and so keeps its traceback, and with that
    what was read of the body, until the garbage collector runs.
    """

    def __init__(self, status: HTTPStatus, text: str) -> None:
        super().__init__(text)
        self._status = status

    def response(self) -> web.Response:
        """Return the answer."""
        headers = {"Retry-After": "1"} if self._status == HTTPStatus.SERVICE_UNAVAILABLE else None
        return web.Response(status=self._status, text=f"{self}\n", headers=headers)


def _too_large(size: int) -> BodyRejection:
    return BodyRejection(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        f"a review has at most {LARGEST_BYTES} bytes, and this body has {size} or more",
    )
