"""The API server: listens, issues kubeconfigs and tokens, and can be reset for the next test."""

from __future__ import annotations

import asyncio
import base64
import resource
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Final, Self

from aiohttp import StreamReader, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http_parser import RawRequestMessage
from aiohttp.web_protocol import RequestHandler

from dra_kit.apiserver.admission.node_restriction import restrict_node
from dra_kit.apiserver.admission.policies import PolicyAdmission
from dra_kit.apiserver.admission.quotas import QuotaAdmission
from dra_kit.apiserver.admission.requests import BINDINGS, MUTATING, VALIDATING
from dra_kit.apiserver.admission.webhooks import LocalWebhooks, WebhookAdmission
from dra_kit.apiserver.api import AdmissionAttributes, Api, RuntimeConfig
from dra_kit.apiserver.authentication import DEFAULT_SECONDS, NAMES, Authenticator
from dra_kit.apiserver.authorization import aggregate_cluster_roles
from dra_kit.apiserver.bootstrap import create_initial_objects, create_own_service, serve_custom_resources
from dra_kit.apiserver.endpoint import Endpoint
from dra_kit.apiserver.garbage_collection import NAMESPACE_SECONDS, GarbageCollector
from dra_kit.apiserver.kinds.kind import KindRegistry
from dra_kit.apiserver.pod_log import PodLogSource
from dra_kit.apiserver.pod_streams import PodStreams
from dra_kit.apiserver.requests import Target
from dra_kit.apiserver.verbs.decoding import BODY_MAX
from dra_kit.client.credentials import Connection
from dra_kit.kubernetes.release import UNMODIFIED, Release
from dra_kit.kubernetes.values.json import Object
from dra_kit.process.connections import ConnectionLimiter, ConnectionLimits

_GONE_SECONDS: Final = 2.0  # a peer that does not answer the goodbye of TLS is not waited for any longer
_POLL: Final = 0.005
_MOST_CONNECTIONS: Final = 512
_SHARE_OF_FILES: Final = 4
"""One of so many files that the process may have open: its other parts, and what it starts, need some, too."""
_PATIENCE_SECONDS: Final = 30.0
BACKLOG: Final = 4096
"""How many clients may wait at a unix socket, where Linux allows so many; it does so by default, from 5.4 on."""
CONTEXT: Final = "dra-kit"
"""Name of context, cluster and user in a kubeconfig."""


class ApiServer:
    """A Kubernetes API server that stores its objects in memory; ``async with`` starts and stops it.

    It stores, validates and announces objects as one release of Kubernetes does. It neither schedules pods nor
    runs containers.

    Args:
        host: the address to listen on.
        port: the port; 0 for a free one.
        tls: serve HTTPS with a certificate of its own authority, which the kubeconfig names.
        authenticator: authenticates requests; without it, every client is the administrator.
        release: the release, with its feature gates.
        runtime_config: which versions are served.
        garbage_collection: delete dependents of deleted objects and empty deleted namespaces.
        namespace_seconds: how long the contents of a deleted namespace stay, unless a client deletes them earlier.

    Attributes:
        api: the API that it serves, for code of the same thread.
        socket: path of a unix socket that takes the same requests without TLS, for clients in this process. Only this
            user may access its folder. Set it before the server listens; None for no socket.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        tls: bool = False,
        authenticator: Authenticator | None = None,
        release: Release | None = None,
        runtime_config: RuntimeConfig | None = None,
        garbage_collection: bool = True,
        namespace_seconds: float = NAMESPACE_SECONDS,
    ) -> None:
        self.host: str = host
        self.port: int = port
        self.socket: Path | None = None
        self._admission = AdmissionChain()
        release, runtime_config = release or UNMODIFIED, runtime_config or RuntimeConfig()
        registry = KindRegistry(runtime_config.served(release))
        self.api: Api = Api(release, self._admission, registry)
        self._endpoint = Endpoint(self.api, authenticator)
        self._authenticator = authenticator
        self._tls = tls
        self._ca: bytes | None = None
        self._ssl: ssl.SSLContext | None = None
        self._runner: web.ServerRunner | None = None
        self._listeners: list[asyncio.Server] = []
        self._serving = AsyncExitStack()
        self._connections: ConnectionLimiter | None = None
        create_initial_objects(self.api)
        self._bring_back_initial_objects: Callable[[], None] = self.api.storage.checkpoint()
        serve_custom_resources(self.api)
        self._stop_aggregation: Callable[[], None] = aggregate_cluster_roles(self.api.storage)
        self._collects_garbage = garbage_collection
        self._namespace_seconds = namespace_seconds
        self._collector: GarbageCollector | None = None

    @property
    def requests(self) -> Counter[tuple[str, str, str]]:
        """Received requests by (user agent, verb, resource), as in ``("kubectl/v1.37.1", "get", "pods")``."""
        return self._endpoint.requests

    def delay_requests(self, before: Callable[[str, Target], Awaitable[None]]) -> None:
        """Have each request on a resource wait for what is given its user agent and target."""
        self._endpoint.before = before

    @property
    def url(self) -> str:
        """The URL of the server."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self._tls else 'http'}://{host}:{self.port}"

    @property
    def open_connections(self) -> int:
        """How many connections are open, those in the middle of a TLS handshake included."""
        return (self._connections.count if self._connections else 0) + sum(map(_count, self._listeners))

    @property
    def authority(self) -> str:
        """The certificate of the authority that signed the server's, as PEM; empty without TLS."""
        return (self._ca or b"").decode()

    def connection(self, token: str = "") -> Connection:
        """Return a connection for clients in this process, with a token or the administrator's."""
        token = token or (self._authenticator.token if self._authenticator is not None else "")
        path = str(self.socket) if self.socket is not None else None
        return Connection(self.url, f"Bearer {token}" if token else None, ca=self._ca, socket=path)

    def token(self, namespace: str, account: str, *, node: str = "", seconds: float = DEFAULT_SECONDS) -> str:
        """Return a token of a service account; call it in the thread that the server runs in.

        It may be bound to a node and name it, like the tokens of pods on that node.

        Raises:
            KeyError: the account or the node does not exist.
        """
        found = self.api.lookup("serviceaccounts", f"{namespace}/{account}")
        where = self.api.lookup("nodes", node) if node else None
        if found is None or (node and where is None):
            raise KeyError(f"node {node}" if found else f"service account {namespace}/{account}")
        return self.api.tokens.issue(found, node=where, seconds=seconds)[0]

    def kubeconfig(self, token: str = "") -> Object:
        """Return a kubeconfig document with a token or the administrator's."""
        cluster: Object = {"server": self.url}
        if self._ca is not None:
            cluster["certificate-authority-data"] = base64.b64encode(self._ca).decode()
        token = token or (self._authenticator.token if self._authenticator is not None else "any")
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": CONTEXT,
            "clusters": [{"name": CONTEXT, "cluster": cluster}],
            "users": [{"name": CONTEXT, "user": {"token": token}}],
            "contexts": [{"name": CONTEXT, "context": {"cluster": CONTEXT, "user": CONTEXT}}],
            "preferences": {},
        }

    def serve_logs(self, source: PodLogSource) -> None:
        """Answer ``pods/log`` with the logs of a source."""
        self.api.pod_log = source

    def serve_streams(self, source: PodStreams) -> None:
        """Answer ``pods/exec``, ``attach`` and ``portforward`` with the streams of a source."""
        self.api.pod_streams = source

    def enforce_quotas(self) -> None:
        """Reject objects that exceed a ResourceQuota, and count those that there are; call it before clients write."""
        self._admission.quotas = QuotaAdmission(self.api)

    def call_local_webhooks(self, find: LocalWebhooks) -> None:
        """Call programs for webhooks whose Service they stand for, by namespace and name, instead of its pods."""
        self._admission.webhooks.local = find

    def reset(self) -> None:
        """Delete the history and all objects but the initial ones; call it in the thread that the server runs in."""
        self._bring_back_initial_objects()
        self._stop_aggregation()
        self._stop_aggregation = aggregate_cluster_roles(self.api.storage)
        self.api.registry.clear()
        if self._collector is not None:
            self._collector.close()
            self._collector = self._started_collector()
        create_own_service(self.api, self.host, self.port)

    async def __aenter__(self) -> Self:
        if self._collects_garbage:
            self._collector = self._started_collector()
        await self.listen()
        return self

    def _started_collector(self) -> GarbageCollector:
        return GarbageCollector(self.api, namespace_seconds=self._namespace_seconds)

    async def __aexit__(self, *exc: object) -> None:
        if self._collector is not None:
            self._collector.close()
        await self.stop_listening()
        await self._admission.webhooks.close()
        await self._connections_gone()

    async def listen(self) -> None:
        """Accept requests; after :meth:`stop_listening` again at the same address, with the same objects."""
        if self._runner is not None:
            return
        runner = web.ServerRunner(
            web.Server(self._endpoint, request_factory=_request, handler_cancellation=True, access_log=None),
            shutdown_timeout=0.1,
        )
        await runner.setup()
        loop, protocols = asyncio.get_running_loop(), runner.server
        assert protocols is not None  # noqa: S101 - since setup
        self._runner, self._listeners = runner, []
        try:
            family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
            listening = self._serving.enter_context(socket.create_server((self.host, self.port), family=family))
            self.port = listening.getsockname()[1]
            create_own_service(self.api, self.host, self.port)
            self._connections = ConnectionLimiter(protocols, listening, self._ssl_context(), _limits())
            await self._serving.enter_async_context(self._connections.serving())
            if self.socket is not None:
                self._listeners.append(await loop.create_unix_server(protocols, self.socket, backlog=BACKLOG))
        except BaseException:
            await self.stop_listening()
            raise

    async def stop_listening(self) -> None:
        """Stop like a crashed API server: connections break, and new ones are refused."""
        runner, self._runner = self._runner, None
        await self._serving.aclose()
        for listener in self._listeners:
            listener.close()
        if runner is not None:
            await runner.cleanup()

    async def _connections_gone(self) -> None:
        """Wait until all closed connections are gone, including those in a TLS handshake; break what is left then.

        It takes turns of the event loop: sockets of a loop that ends before are left to the garbage collector.
        """

        async def wait() -> None:
            end = time.monotonic() + _GONE_SECONDS
            while time.monotonic() < end and self.open_connections:  # noqa: ASYNC110 - nothing signals the end
                await asyncio.sleep(_POLL)

        await wait()
        if self._connections is not None:
            self._connections.abort()
        await wait()

    def _ssl_context(self) -> ssl.SSLContext | None:
        if not self._tls or self._ssl is not None:
            return self._ssl
        import trustme

        authority = trustme.CA()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert(*dict.fromkeys((self.host, *NAMES))).configure_cert(context)
        self._ca = authority.cert_pem.bytes()
        self._ssl = context
        return context


class AdmissionChain:
    """The order of admission: limits of kubelets, mutating webhooks, policies, validating webhooks, quotas."""

    def __init__(self) -> None:
        self.webhooks: WebhookAdmission = WebhookAdmission()
        self.quotas: QuotaAdmission | None = None
        self._policies = PolicyAdmission()

    async def mutate(self, write: AdmissionAttributes, warnings: list[str]) -> Object:
        """See :class:`dra_kit.apiserver.api.AdmissionPlugin`."""
        restrict_node(write)
        obj = await self.webhooks.mutate(write, warnings) if _any(write, MUTATING) else write.obj
        assert obj is not None  # noqa: S101 - a deletion is only reviewed
        return obj

    async def review(self, write: AdmissionAttributes, warnings: list[str]) -> None:
        """See :class:`dra_kit.apiserver.api.AdmissionPlugin`."""
        if write.obj is None:  # what may change an object can only reject its deletion
            restrict_node(write)
            if _any(write, MUTATING):
                await self.webhooks.mutate(write, warnings)
        if _any(write, BINDINGS):
            self._policies.review(write, warnings)
        if _any(write, VALIDATING):
            await self.webhooks.validate(write, warnings)
        if self.quotas is not None:  # last: what it counts is stored at once
            self.quotas.review(write)


def _any(write: AdmissionAttributes, resource: str) -> bool:
    return next(write.api.storage.items(resource), None) is not None


def _count(listener: asyncio.Server) -> int:
    """Return how many accepted connections are still open: Server.wait_closed, right from 3.12 on only."""
    clients = getattr(listener, "_clients", None)  # from 3.13 on
    return len(clients) if clients is not None else getattr(listener, "_active_count", 0)


def _limits() -> ConnectionLimits:
    """Return connection limits that leave file descriptors for the rest of the process."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST_CONNECTIONS if files == resource.RLIM_INFINITY else min(_MOST_CONNECTIONS, files // _SHARE_OF_FILES)
    return ConnectionLimits(
        connections=max(1, most),
        waiting=max(1, most // 2),
        tls_seconds=_PATIENCE_SECONDS,
        first_seconds=_PATIENCE_SECONDS,
        request_seconds=_PATIENCE_SECONDS,
    )


def _request(
    message: RawRequestMessage,
    payload: StreamReader,
    protocol: RequestHandler,
    writer: AbstractStreamWriter,
    task: asyncio.Task[None],
) -> web.BaseRequest:
    """Return a request without aiohttp's body limit: the API server's is larger and returns a Status."""
    return web.BaseRequest(
        message, payload, protocol, writer, task, asyncio.get_running_loop(), client_max_size=2 * BODY_MAX
    )


@contextmanager
def run_in_thread(
    *,
    tls: bool = False,
    authenticator: Authenticator | None = None,
    release: Release | None = None,
    runtime_config: RuntimeConfig | None = None,
) -> Iterator[ApiServer]:
    """Run an :class:`ApiServer` in a thread with its own loop, so that the caller may block."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="dra-kit-apiserver", daemon=True)
    thread.start()
    server = ApiServer(tls=tls, authenticator=authenticator, release=release, runtime_config=runtime_config)
    try:
        asyncio.run_coroutine_threadsafe(server.__aenter__(), loop).result()
        yield server
    finally:
        asyncio.run_coroutine_threadsafe(server.__aexit__(None), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
