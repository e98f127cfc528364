"""kopf in a process that is more than an operator: its import, its settings, its thread, its session, its errors.

What kopf 1.45 does, and what this module does about it:

* Importing it imports every Kubernetes client that is installed (35 MiB of generated models). It is imported here with
  the clients hidden, so handlers take it from here: ``from dra_kit.client.operator import kopf``. A plain
  ``import kopf`` works too, but the first import decides about the memory.
* When it ends, it cancels every task of its event loop that is younger than itself; in the main thread it replaces the
  SIGTERM and SIGINT handlers for good; and after an error it kills the process ten minutes later. So it always runs in
  a separate thread and loop, :class:``KopfThread``, with that timer off.
* It ends easily: 403, 404, 5xx or no connection for longer than its back-offs (a minute), an ERROR event of a watch.
  So it can be started again, each life with a fresh registry and fresh settings. It waits between two requests that
  fail, as long in each process, and not at all between two watches that the server ends at once.
* A field selector whose key is spelt ``group/plural`` matches nothing, silently: the watch is cluster-wide.
  :func:``kopf_settings`` takes resources, and checks what it made of them.
* Handlers of create, update, delete, resume and field, daemons and timers write annotations or finalizers; an event
  handler that returns a value writes a status. :func:``on_event`` handlers write nothing.
* Without a login handler it tries all client libraries. Here it uses our credentials, through one session whose every
  request carries the current token.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import importlib.abc
import json
import logging
import math
import re
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, Literal, TypeAlias, cast

import aiohttp
from aiohttp.connector import Connection
from typing_extensions import override
from yarl import URL

from dra_kit.author.calls import call_threadsafe
from dra_kit.client.credentials import Credentials
from dra_kit.client.informer import SHORT_WATCH_SECONDS, jittered, retry_delay
from dra_kit.client.resources import Resource
from dra_kit.client.transport import is_usable, readable
from dra_kit.errors import DraKitError, Forbidden, InternalError, NotFound, Unavailable


@contextmanager
def _clients_hidden() -> Iterator[None]:
    """Let this thread, and no other, import as if no Kubernetes client were installed."""
    finder = _Hidden(threading.get_ident())
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


class _Hidden(importlib.abc.MetaPathFinder):
    def __init__(self, thread: int) -> None:
        self._thread = thread

    def find_spec(self, name: str, *_: object) -> None:
        if name in {"kubernetes", "kubernetes_asyncio", "pykube"} and threading.get_ident() == self._thread:
            raise ModuleNotFoundError(f"{name} is hidden from kopf", name=name)


with _clients_hidden():
    import kopf
    from kopf._core.reactor.inventory import ResourceMemories, ResourceMemory  # public by kopf.operator(memories=…)
__all__ = ["EventHandler", "EventType", "KopfThread", "kopf", "kopf_settings", "on_event"]
logger: logging.Logger = logging.getLogger(__name__)


class KopfRetryFilter(logging.Filter):
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


_retries = KopfRetryFilter()
for _name in [name for name in logging.root.manager.loggerDict if name.startswith("kopf._")]:
    logging.getLogger(_name).addFilter(_retries)
_SILENCE: Final = 330.0
"""Seconds without data after which a watch counts as lost, as for our own watches. kopf's 70 relies on a bookmark per
minute, which the API server does not guarantee: each node would reconnect all day long."""


_ERROR_BACKOFFS: Final = (1.0, 1.0, 2.0, 3.0, 5.0, 8.0, 13.0, 21.0)
"""kopf's own seconds between attempts of a request, which are the same in each process."""


class _Forgetful(ResourceMemories):
    """Stores no objects: kopf retains several KiB for each, needed only for change handlers, daemons and timers."""

    async def recall(self, *args: Any, ephemeral: bool = False, **kwargs: Any) -> ResourceMemory:
        del ephemeral
        return await super().recall(*args, ephemeral=True, **kwargs)


EventType: TypeAlias = Literal["ADDED", "MODIFIED", "DELETED"] | None
"""Type of a watch event; None for an object of the initial list."""
EventHandler: TypeAlias = Callable[[EventType, Mapping[str, Any]], Coroutine[Any, Any, object]]
"""Called with the type of an event and the object, whose content must not be modified."""


def kopf_settings(
    field_selectors: Mapping[Resource, str] | None = None, *, chunk_size: int | None = None
) -> kopf.OperatorSettings:
    """Return settings with which kopf sends no requests and writes nothing except what its handlers need.

    That is: no watch of CustomResourceDefinitions and namespaces, no peering, no Events, no SIGKILL, bounded waits.

    Args:
        field_selectors: per resource, the field selector of lists and watches.
        chunk_size: objects per page of the initial list; None for one page.

    Raises:
        InternalError: kopf would not apply a selector to its resource.
    """
    settings = kopf.OperatorSettings()
    settings.scanning.disabled = True
    settings.peering.standalone = True
    settings.posting.enabled = False
    settings.process.ultimate_exiting_timeout = None
    settings.watching.connect_timeout = 10.0
    settings.watching.chunk_size = chunk_size
    settings.watching.inactivity_timeout = _SILENCE
    settings.networking.request_timeout = 30.0
    settings.networking.error_backoffs = [jittered(seconds) for seconds in _ERROR_BACKOFFS]
    logging.getLogger("kopf.objects").setLevel(logging.WARNING)  # otherwise one line for each call of a handler
    for resource, selector in (field_selectors or {}).items():
        key = (resource.group, resource.version, resource.plural)
        settings.watching.field_selectors[key] = selector
        # also if the cluster prefers another version of the group
        seen_by_kopf = kopf.Resource(*key, kind=resource.kind, namespaced=resource.namespaced, preferred=False)
        if settings.watching.field_selectors.collect(seen_by_kopf) != [selector]:
            raise InternalError(f"this version of kopf does not apply the field selector of {resource.full_name}")
    return settings


def on_event(
    registry: kopf.OperatorRegistry,
    resource: Resource,
    handler: EventHandler,
    *,
    id: str,  # noqa: A002 - kopf's word
    loop: asyncio.AbstractEventLoop,
) -> None:
    """Register a handler of watch events that cannot write to the objects, no matter what it returns.

    kopf handles the events of one object one at a time. kopf logs an error of the handler and continues. Deletions
    during a gap in the watch are never reported, so treat a handler call as a hint to read the objects again.

    The handler runs in ``loop``: that of the service it belongs to, not kopf's.
    """

    async def notify(*, event: kopf.RawEvent, **_: object) -> None:
        called = handler(cast("EventType", event["type"]), cast("Mapping[str, Any]", event["object"]))
        try:
            future = asyncio.run_coroutine_threadsafe(called, loop)
        except RuntimeError:  # the loop is closed: the process stops and no longer needs the event
            called.close()
            return
        await asyncio.wrap_future(future)

    kopf.on.event(resource.group, resource.version, resource.plural, id=id, registry=registry)(notify)


class KopfThread:
    """Runs kopf in a daemon thread with its own loop; also a :class:`~dra_kit.process.supervisor.Part`.

    Args:
        build: called in the thread before each run; returns a fresh registry and fresh settings. Objects of an earlier
            run must not be used again.
        backoff: seconds to wait before the first, second ... restart, jittered; the last value repeats. It starts over
            after a run that watched for longer than the longest of them. Empty: a single run, whose error :meth:`run`
            raises, so that the process exits and its pod is restarted.
        stop_timeout: seconds that stopping may take; kopf itself waits up to 5 s for what it calls hung tasks.
        events_only: all handlers are of watch events: nothing of the objects is stored.
        changes_only: handlers get changes of DRA's objects, but no objects of kopf's lists: ``watching`` makes the
            caller list them. kopf would hold all objects of a list until its handlers have had each of them.
        memo: called in the thread's loop before each run, with its registry; handlers of that run get the result, or a
            copy of it, as ``memo``.
        watching: called in the thread when kopf starts to watch what it has listed, in each run and again whenever a
            watch cannot continue where the last one stopped: later changes are reported, earlier ones are not.

    Attributes:
        ready: kopf is running and its startup handlers have finished. The API server may not have responded yet.
        lives: number of runs started so far.
        last_error: the error of the last failed run: a KubeError, or a bug.
    """

    name = "kopf"

    def __init__(
        self,
        credentials: Credentials,
        build: Callable[[], tuple[kopf.OperatorRegistry, kopf.OperatorSettings]],
        *,
        backoff: Sequence[float] = (1.0, 2.0, 5.0, 15.0, 60.0),
        stop_timeout: float = 10.0,
        events_only: bool = False,
        changes_only: bool = False,
        memo: Callable[[kopf.OperatorRegistry], object] | None = None,
        watching: Callable[[], object] = lambda: None,
    ) -> None:
        self._memo = memo
        self._events_only = events_only
        self._changes_only = changes_only
        self._watching = watching
        self.ready: threading.Event = threading.Event()
        self.lives: int = 0
        self.last_error: Exception | None = None
        self._credentials = credentials
        self._build = build
        self._backoff = tuple(backoff)
        self._stop_timeout = stop_timeout
        self._stopping = threading.Event()
        self._wake: Callable[[], object] = lambda: None
        self._on_ready: Callable[[], object] = lambda: None
        self._on_end: Callable[[], object] = lambda: None
        self._thread = threading.Thread(target=self._main, name=self.name, daemon=True)

    @property
    def restarts(self) -> int:
        """The number of restarts of kopf; may be read from any thread."""
        return max(0, self.lives - 1)

    def start(self) -> None:
        """Start the thread; at most once."""
        self._thread.start()

    def stop(self, timeout: float | None = None) -> bool:
        """Stop kopf, blocking; returns immediately while it waits between two runs.

        Return whether the thread finished within ``timeout`` seconds, by default ``stop_timeout``. If not, it ends with
        the process.
        """
        self._stopping.set()
        self._wake()
        if self._thread.ident is not None:
            self._thread.join(self._stop_timeout if timeout is None else timeout)
        return not self._thread.is_alive()

    async def run(self, ready: asyncio.Event) -> None:
        """Run the thread as a part of a supervisor, until cancelled; ready when kopf is running for the first time.

        Raises:
            KubeError: without ``backoff``: the error that stopped kopf.
            InternalError: without ``backoff``: kopf stopped without an error.
        """
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        self._on_ready = lambda: call_threadsafe(loop, ready.set)
        self._on_end = lambda: call_threadsafe(loop, ended.set)
        self.start()
        try:
            await ended.wait()
        finally:
            if not await asyncio.to_thread(self.stop):
                logger.warning("kopf did not stop in time", extra={"timeout": self._stop_timeout})
        if self.last_error is not None:
            raise self.last_error

    def _main(self) -> None:
        attempt = 0
        while not self._stopping.is_set():
            self.lives += 1
            began = time.monotonic()
            session = KopfSession(self._credentials, on_watch=self._watched, empty_lists=self._changes_only)
            try:
                asyncio.run(self._live(session))
            except BaseException as error:  # noqa: BLE001 - an error stops neither the thread nor the process
                self._failed(error, again=attempt > 0)
            self.ready.clear()
            if self._stopping.is_set() or not self._backoff:
                break
            if session.watched and time.monotonic() - began > max(self._backoff):
                attempt = 0
            self._stopping.wait(jittered(self._backoff[min(attempt, len(self._backoff) - 1)]))
            attempt += 1
        self._on_end()

    async def _live(self, session: KopfSession) -> None:
        asyncio.get_running_loop().set_exception_handler(_unheard)
        registry, settings = self._build()
        try:
            await self._operate(registry, settings, session)
        finally:
            await session.close()
        if not self._stopping.is_set():
            raise InternalError("kopf ended by itself, without an error")

    async def _operate(
        self, registry: kopf.OperatorRegistry, settings: kopf.OperatorSettings, session: KopfSession
    ) -> None:
        settings.process.ultimate_exiting_timeout = None
        login = kopf.AiohttpSession(
            server=self._credentials.connection.server,
            aiohttp_session=session.open(),
            default_namespace=self._credentials.connection.namespace,
        )

        async def log_in(**_: object) -> kopf.AiohttpSession:
            return login  # called again after a 401: the same session tells kopf that no other exists

        kopf.on.login(id="dra-kit", registry=registry)(log_in)
        alive = concurrent.futures.Future[None]()
        alive.add_done_callback(self._alive)
        loop, stop = asyncio.get_running_loop(), asyncio.Event()
        self._wake = lambda: call_threadsafe(loop, stop.set)

        async def end_waiter(**_: object) -> None:
            stop.set()  # otherwise a failing kopf waits 5 s for its own task that waits for this flag

        kopf.on.cleanup(id="dra-kit", registry=registry)(end_waiter)
        if not self._stopping.is_set():  # otherwise stop() came before there was a flag to set
            await kopf.operator(
                registry=registry,
                settings=settings,
                clusterwide=True,
                standalone=True,
                memories=_Forgetful() if self._events_only else None,
                memo=self._memo(registry) if self._memo is not None else None,
                # otherwise kopf reads the user's name, which a UID without an entry in /etc/passwd does not have
                identity=cast("Any", "dra-kit"),
                stop_flag=stop,
                ready_flag=alive,
            )

    def _watched(self, after_list: bool) -> None:
        _retries.forget()
        if after_list:
            self._watching()

    def _alive(self, _: object) -> None:
        self.ready.set()
        self._on_ready()

    def _failed(self, error: BaseException, *, again: bool) -> None:
        before, self.last_error = self.last_error, translate_kopf_error(error)
        if not self._backoff or self._stopping.is_set():
            return  # run() reports it; or the process is stopping
        if not isinstance(self.last_error, DraKitError):
            logger.error("kopf failed and is started again", exc_info=self.last_error)
            return
        repeated = again and str(before) == str(self.last_error)
        logger.log(
            logging.DEBUG if repeated else logging.WARNING,
            "kopf ended and is started again",
            extra={"error": str(self.last_error), "code": self.last_error.code, "lives": self.lives},
        )


def _unheard(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Ignore futures of kopf that failed because of the error that stops it; the thread reports that error once."""
    logger.debug("kopf left a failed task behind", extra={"error": context.get("exception") or context.get("message")})


# Except for watches. kopf requests all versions of the API group at once, each over its own connection: 0.3 MiB each,
# which are never freed.
_AT_ONCE: Final = 1


class KopfSession:
    """An HTTP session that renews its token itself, so that kopf need not log in again.

    kopf's own login writes certificates to files, verifies the server's certificate more strictly than other clients
    from Python 3.13 on, and closes watches when a token is renewed.

    Args:
        on_watch: called whenever the API server has opened a watch. The argument is whether its objects were listed
            before. If so, the watch does not continue an earlier one, and changes in between are not reported.
        empty_lists: of a list of DRA's objects, kopf gets the version where its watch begins, and no objects.

    Attributes:
        watched: paths of opened watches; if there is one, kopf worked for a while.
    """

    def __init__(
        self, credentials: Credentials, on_watch: Callable[[bool], object], *, empty_lists: bool = False
    ) -> None:
        self.watched: set[str] = set()
        self._response_class: type[_ReadableResponse] = _EmptyListResponse if empty_lists else _ReadableResponse
        self._on_watch = on_watch
        self._listed: set[str] = set()
        self._streams: list[asyncio.Transport] = []
        self._credentials = credentials
        self._http: aiohttp.ClientSession | None = None
        self._turn = asyncio.Semaphore(_AT_ONCE)
        self._opened: dict[str, tuple[float, int]] = {}  # by path: when, and the number of short watches before it

    def open(self) -> aiohttp.ClientSession:
        """Open the session, in the loop that uses it, and return it for kopf."""
        path = self._credentials.connection.socket
        self._http = aiohttp.ClientSession(
            connector=aiohttp.UnixConnector(path, limit=0)
            if path is not None
            else aiohttp.TCPConnector(limit=0, ssl=self._credentials.ssl or True),
            proxy=self._credentials.connection.proxy,
            response_class=self._response_class,
            middlewares=(self._send,),
        )
        return cast("aiohttp.ClientSession", _OwnedElsewhere(self._http))

    async def close(self) -> None:
        """Close the session; a no-op before :meth:`open`."""
        for stream in self._streams:
            stream.abort()  # a TLS shutdown takes a round trip, and kopf's loop is already closed by then
        if self._http is not None:
            await self._http.close()

    async def _send(self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
        if self._credentials.connection.tls_server_name:
            request.server_hostname = self._credentials.connection.tls_server_name
        if "watch" in request.url.query:
            await self._rest(request.url.path)
            response = await self._answered(request, handler)
            self._streams = [stream for stream in self._streams if not stream.is_closing()]
            if response.connection is not None and response.connection.transport is not None:
                self._streams.append(response.connection.transport)
            return response
        async with self._turn:
            return await self._answered(request, handler)

    async def _rest(self, path: str) -> None:
        """Wait before a watch that follows a short one: kopf watches again at once, also when each watch is ended."""
        opened, short = self._opened.get(path, (-math.inf, 0))
        short = short + 1 if time.monotonic() - opened < SHORT_WATCH_SECONDS else 0
        if short:
            await asyncio.sleep(retry_delay(short - 1))
        self._opened[path] = time.monotonic(), short

    async def _answered(
        self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        authorization = await self._credentials.authorization()
        response = await handler(_authorized(request, authorization))
        if response.status == 401 and await self._credentials.refresh(authorization):
            response.release()
            response = await handler(_authorized(request, await self._credentials.authorization()))
        if response.ok:
            self._reached(request.url)
        return response

    def _reached(self, url: URL) -> None:
        if "watch" not in url.query:
            self._listed.add(url.path)
            return
        after_list = url.path in self._listed
        self._listed.discard(url.path)
        self.watched.add(url.path)
        self._on_watch(after_list)


class _ReadableResponse(aiohttp.ClientResponse):
    """Leaves out objects that are nested too deeply, which would end kopf."""

    @override
    async def start(self, connection: Connection) -> aiohttp.ClientResponse:
        """Read the headers; a watch is filtered from then on."""
        await super().start(connection)
        resource = _resource_at(self.url.path)
        if resource is not None and "watch" in self.url.query:
            self.content = cast("aiohttp.StreamReader", _ReadableEvents(self.content, resource))
        return self

    @override
    async def json(self, **options: Any) -> Any:
        """Return the JSON of a response; of a list the objects that can be read."""
        resource = _resource_at(self.url.path)
        if resource is None:
            return await super().json(**options)
        body, mark = readable(resource, await self.read())
        if not mark:
            return await super().json(**options)
        value = json.loads(body)
        items = value.get("items") or ()
        return {**value, "items": [item for item in items if is_usable(resource, item, mark)]}


class _EmptyListResponse(_ReadableResponse):
    """Leaves the objects out of a list, and the rest of its pages."""

    @override
    async def json(self, **options: Any) -> Any:
        """Return the JSON of a response; of a list its version alone."""
        value = await super().json(**options)
        if _resource_at(self.url.path) is None or not isinstance(value, dict) or "items" not in value:
            return value
        return {**value, "metadata": {**(value.get("metadata") or {}), "continue": ""}, "items": []}


class _ReadableEvents:
    """The lines of a watch, without what is nested too deeply to be read."""

    def __init__(self, content: aiohttp.StreamReader, resource: Resource) -> None:
        self._content = content
        self._resource = resource

    def __getattr__(self, name: str) -> Any:
        return getattr(self._content, name)

    async def iter_chunked(self, size: int) -> AsyncIterator[bytes]:
        rest = b""
        async for data in self._content.iter_chunked(size):
            *lines, rest = (rest + data).split(b"\n")
            if kept := [text for line in lines if line and (text := self._readable(line))]:
                yield b"".join(b"%b\n" % text for text in kept)
        if rest:
            yield rest

    def _readable(self, line: bytes) -> bytes:
        """Return a line that can be read; empty if too much is missing."""
        text, mark = readable(self._resource, line)
        if not mark:
            return line
        event = json.loads(text)
        usable = is_usable(self._resource, event.get("object") or {}, mark)
        return json.dumps(event).encode() if usable else b""


def _resource_at(path: str) -> Resource | None:
    """Return the resource of DRA that a path is about; None for any other."""
    found = _DRA_PATH.search(path)
    return Resource(found[1], found[2], found[3], found[3], namespaced=False) if found is not None else None


_DRA_PATH: Final = re.compile(r"/apis/(resource\.k8s\.io)/([^/]+)/(?:namespaces/[^/]+/)?([^/]+)$")


class _OwnedElsewhere:
    """Ignores kopf's close: kopf closes it while requests are running, whose errors then hide the original one."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    async def close(self) -> None:
        """Do nothing: the owner closes the session."""


def _authorized(request: aiohttp.ClientRequest, authorization: str | None) -> aiohttp.ClientRequest:
    request.headers.pop("Authorization", None)
    if authorization is not None:
        request.headers["Authorization"] = authorization
    return request


def translate_kopf_error(error: BaseException) -> Exception:
    """Return the error that stopped kopf as one of our errors; a bug stays unchanged.

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
