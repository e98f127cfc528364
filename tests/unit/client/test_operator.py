"""The wrapper of kopf, against a real HTTP server; and the facts about kopf that it relies on."""

from __future__ import annotations

import asyncio
import logging
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import pytest

from dra_kit.client.credentials import Connection, Credentials
from dra_kit.client.operator import EventHandler, EventType, KopfThread, kopf, kopf_settings, on_event
from dra_kit.client.resources import PODS, RESOURCE_CLAIMS, RESOURCE_SLICES, Resource
from dra_kit.client.transport import UNREADABLE
from dra_kit.errors import Forbidden, KubeError, Unavailable
from tests.support.api import eventually
from tests.unit.client.operator_api import SLICES_PATH, OperatorApi, resource_slice

SELECTOR = "spec.driver=dra.pizza,spec.nodeName=node-1"
LONG = 3600.0


@pytest.fixture
def api() -> Iterator[OperatorApi]:
    with OperatorApi() as server:
        yield server


def deep_claim(name: str, levels: int = 400) -> dict[str, Any]:
    """A claim with opaque parameters of so many levels."""
    parameters: dict[str, Any] = {}
    for _ in range(levels):
        parameters = {"a": parameters}
    config = [{"opaque": {"driver": "dra.pizza", "parameters": parameters}}]
    return {**resource_slice(name), "kind": "ResourceClaim", "spec": {"devices": {"config": config}}}


class Seen:
    """A handler that remembers, and returns something, which must not matter."""

    def __init__(self) -> None:
        self.events: list[tuple[EventType, str]] = []
        self.parameters: list[Mapping[str, Any]] = []
        self.loops: set[asyncio.AbstractEventLoop] = set()
        self.error: Exception | None = None

    async def __call__(self, type: EventType, item: Mapping[str, Any]) -> str:  # noqa: A002
        self.events.append((type, item["metadata"]["name"]))
        config = item["spec"].get("devices") or {}
        self.parameters += [each["opaque"]["parameters"] for each in config.get("config", ())]
        self.loops.add(asyncio.get_running_loop())
        if self.error is not None:
            raise self.error
        return "this must not become a status"

    @property
    def names(self) -> list[str]:
        return [name for _, name in self.events]


def anonymous(api: OperatorApi) -> Credentials:
    return Credentials(Connection(server=api.url))


def builder(
    handler: EventHandler, *, selector: str = SELECTOR, retries: tuple[float, ...] = ()
) -> Callable[[], tuple[kopf.OperatorRegistry, kopf.OperatorSettings]]:
    loop = asyncio.get_running_loop()

    def build() -> tuple[kopf.OperatorRegistry, kopf.OperatorSettings]:
        settings = kopf_settings({RESOURCE_SLICES: selector} if selector else {})
        settings.networking.error_backoffs = retries
        registry = kopf.OperatorRegistry()
        on_event(registry, RESOURCE_SLICES, handler, id="slices", loop=loop)
        return registry, settings

    return build


@pytest.fixture
async def seen() -> Seen:
    return Seen()


@pytest.fixture
async def start() -> AsyncIterator[Callable[..., KopfThread]]:
    threads: list[KopfThread] = []

    def start_thread(*args: Any, **options: Any) -> KopfThread:
        thread = KopfThread(*args, **options)
        threads.append(thread)
        thread.start()
        return thread

    yield start_thread
    for thread in threads:
        assert await asyncio.to_thread(thread.stop, 60)


Start = Callable[..., KopfThread]


class TestImport:
    def test_import_loads_no_kubernetes_client_and_leaves_it_importable(self) -> None:
        code = """
            import sys
            before = list(sys.meta_path)
            from dra_kit.client.operator import kopf
            clients = {name for name in sys.modules if name.split(".")[0] in ("kubernetes", "kubernetes_asyncio")}
            assert not clients, clients
            assert callable(kopf.operator)
            assert sys.meta_path == before
            import kubernetes_asyncio.client
            assert kubernetes_asyncio.client.V1ObjectMeta(name="x").name == "x"
        """
        subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, timeout=240)


class TestQuietSettings:
    @pytest.mark.parametrize("resource", [RESOURCE_SLICES, RESOURCE_CLAIMS, PODS])
    def test_a_selector_applies_to_its_resource(self, resource: Resource) -> None:
        settings = kopf_settings({resource: "metadata.name=x"})
        seen_by_kopf = kopf.Resource(resource.group, resource.version, resource.plural, preferred=False)
        assert settings.watching.field_selectors.collect(seen_by_kopf) == ["metadata.name=x"]

    def test_a_selector_applies_to_no_other_version(self) -> None:
        settings = kopf_settings({RESOURCE_SLICES: "metadata.name=x"})
        other = kopf.Resource("resource.k8s.io", "v1beta1", "resourceslices")
        assert settings.watching.field_selectors.collect(other) == []

    def test_kopf_ignores_keys_with_a_slash(self) -> None:
        """The reason for taking resources instead of kopf's spellings."""
        settings = kopf.OperatorSettings()
        settings.watching.field_selectors["resource.k8s.io/resourceslices"] = SELECTOR
        slices = kopf.Resource("resource.k8s.io", "v1", "resourceslices")
        assert settings.watching.field_selectors.collect(slices) == []

    def test_a_watch_may_be_silent_for_minutes(self) -> None:
        """The API server promises no bookmarks; kopf's own setting reopens a quiet watch after 70 s."""
        assert kopf_settings().watching.inactivity_timeout >= 300

    def test_settings_disable_scanning_posting_peering_and_killing(self) -> None:
        settings = kopf_settings(chunk_size=500)
        assert settings.scanning.disabled
        assert settings.peering.standalone
        assert not settings.posting.enabled
        assert settings.process.ultimate_exiting_timeout is None
        assert settings.watching.chunk_size == 500


class TestWatching:
    async def test_the_selector_reaches_list_and_watch(self, api: OperatorApi, start: Start, seen: Seen) -> None:
        start(anonymous(api), builder(seen))
        await eventually(api.watching)
        queries = [query for _, path, query, _ in api.requests if path == SLICES_PATH]
        assert [("watch" in query, query["fieldSelector"]) for query in queries] == [
            (False, SELECTOR),
            (True, SELECTOR),
        ]

    async def test_an_object_that_is_nested_too_deeply_is_seen_without_its_parameters(
        self, start: Start, seen: Seen, caplog: pytest.LogCaptureFixture
    ) -> None:
        loop = asyncio.get_running_loop()

        def build() -> tuple[kopf.OperatorRegistry, kopf.OperatorSettings]:
            registry = kopf.OperatorRegistry()
            on_event(registry, RESOURCE_CLAIMS, seen, id="claims", loop=loop)
            return registry, kopf_settings()

        with OperatorApi(plural="resourceclaims", kind="ResourceClaim") as api:
            api.put(deep_claim("listed"))
            api.put(resource_slice("first"))
            start(anonymous(api), build)
            await eventually(api.watching)
            api.put(deep_claim("watched"))
            api.put(resource_slice("second"))
            await eventually(lambda: "second" in seen.names)
        assert sorted(seen.names) == ["first", "listed", "second", "watched"]
        assert seen.parameters == [UNREADABLE, UNREADABLE]
        assert {record.__dict__.get("object") for record in caplog.records} >= {"listed", "watched"}

    async def test_only_selected_objects_are_seen(self, api: OperatorApi, start: Start, seen: Seen) -> None:
        api.put(resource_slice("theirs", node="node-2"))
        api.put(resource_slice("mine"))
        start(anonymous(api), builder(seen))
        await eventually(lambda: seen.events)
        await eventually(api.watching)
        api.put(resource_slice("theirs-too", driver="dra.pasta"))
        api.put(resource_slice("mine-too"))
        await eventually(lambda: "mine-too" in seen.names)
        assert seen.events == [(None, "mine"), ("ADDED", "mine-too")]

    async def test_it_requests_discovery_one_list_and_one_watch_and_writes_nothing(
        self, api: OperatorApi, start: Start, seen: Seen
    ) -> None:
        start(anonymous(api), builder(seen))
        await eventually(api.watching)
        api.put(resource_slice("mine"))
        await eventually(lambda: seen.events)
        api.put(resource_slice("mine", version=2))
        await eventually(lambda: len(seen.events) == 2)
        assert {method for method, *_ in api.requests} == {"GET"}
        assert sorted(path for _, path, *_ in api.requests) == sorted(
            [
                "/api",
                "/api/v1",
                "/apis",
                "/apis/apiextensions.k8s.io/v1",
                "/apis/resource.k8s.io/v1",
                "/apis/resource.k8s.io/v1beta2",
                SLICES_PATH,
                SLICES_PATH,
            ]
        )

    async def test_kopf_writes_a_status_where_a_handler_returns_a_value(self, api: OperatorApi, start: Start) -> None:
        """The reason for ``on_event``."""

        def build() -> tuple[kopf.OperatorRegistry, kopf.OperatorSettings]:
            registry = kopf.OperatorRegistry()

            async def returns(**_: object) -> str:
                return "value"

            kopf.on.event("resource.k8s.io", "v1", "resourceslices", id="returns", registry=registry)(returns)
            return registry, kopf_settings()

        api.put(resource_slice("mine"))
        start(anonymous(api), build)
        await eventually(lambda: any(method == "PATCH" for method, *_ in api.requests))

    async def test_the_version_asked_for_wins_over_the_preferred_one(self, start: Start, seen: Seen) -> None:
        with OperatorApi(preferred="v1beta2") as api:
            thread = start(anonymous(api), builder(seen))
            await eventually(api.watching)
            assert any(path == SLICES_PATH and query["fieldSelector"] == SELECTOR for _, path, query, _ in api.requests)
            await asyncio.to_thread(thread.stop)

    async def test_handlers_run_in_the_loop_they_were_given(self, api: OperatorApi, start: Start, seen: Seen) -> None:
        api.put(resource_slice("mine"))
        start(anonymous(api), builder(seen))
        await eventually(lambda: seen.events)
        assert seen.loops == {asyncio.get_running_loop()}

    async def test_failing_handler_does_not_stop_kopf(self, api: OperatorApi, start: Start, seen: Seen) -> None:
        seen.error = RuntimeError("no cheese")
        thread = start(anonymous(api), builder(seen))
        await eventually(api.watching)
        api.put(resource_slice("first"))
        await eventually(lambda: seen.events)
        api.put(resource_slice("second"))
        await eventually(lambda: len(seen.events) == 2)
        assert thread.lives == 1

    async def test_events_for_a_closed_loop_are_dropped(self, api: OperatorApi, start: Start, seen: Seen) -> None:
        closed = asyncio.new_event_loop()
        closed.close()
        unheard = Seen()
        build = builder(seen)

        def build_both() -> tuple[kopf.OperatorRegistry, kopf.OperatorSettings]:
            registry, settings = build()
            on_event(registry, RESOURCE_SLICES, unheard, id="closed", loop=closed)
            return registry, settings

        thread = start(anonymous(api), build_both)
        await eventually(api.watching)
        api.put(resource_slice("first"))
        api.put(resource_slice("second"))
        await eventually(lambda: "second" in seen.names)
        assert not unheard.events
        assert thread.lives == 1


class TestPace:
    async def test_short_watches_are_further_and_further_apart(
        self, api: OperatorApi, start: Start, seen: Seen, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A server that ends each watch at once gets no watches without a pause: kopf itself makes none."""
        attempts: list[int] = []

        def recorded(attempt: int) -> float:
            attempts.append(attempt)
            return 0.0

        monkeypatch.setattr("dra_kit.client.operator.SHORT_WATCH_SECONDS", LONG)
        monkeypatch.setattr("dra_kit.client.operator.retry_delay", recorded)
        start(anonymous(api), builder(seen))
        for rests in range(4):
            await eventually(lambda: len(attempts) == rests and api.watching())  # noqa: B023 - it ends before
            api.cut()
        await eventually(lambda: len(attempts) == 4)
        assert attempts == [0, 1, 2, 3]

    async def test_a_watch_after_a_long_one_begins_at_once(
        self, api: OperatorApi, start: Start, seen: Seen, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("dra_kit.client.operator.SHORT_WATCH_SECONDS", 0.0)
        monkeypatch.setattr("dra_kit.client.operator.retry_delay", lambda attempt: LONG)
        start(anonymous(api), builder(seen))
        await eventually(api.watching)
        api.cut()
        await eventually(lambda: sum("watch" in query for _, _, query, _ in api.requests) == 2)

    def test_processes_do_not_repeat_their_requests_in_step(self) -> None:
        one, other = (list(kopf_settings().networking.error_backoffs) for _ in range(2))  # type: ignore[arg-type]
        assert one != other
        assert len(one) == 8


class TestLives:
    async def test_403_stops_kopf_until_it_is_allowed_again(
        self, api: OperatorApi, start: Start, seen: Seen, caplog: pytest.LogCaptureFixture
    ) -> None:
        api.refuse(403, 'User "node" cannot list resource "resourceslices"')
        thread = start(anonymous(api), builder(seen, retries=(0.01, 0.01)), backoff=(0.01,))
        await eventually(lambda: thread.lives >= 4)
        assert isinstance(thread.last_error, Forbidden)
        assert "cannot list resource" in str(thread.last_error)
        api.allow()
        await eventually(api.watching)
        api.put(resource_slice("mine"))
        await eventually(lambda: "mine" in seen.names)
        assert [record.message for record in caplog.records if record.levelno >= logging.WARNING].count(
            "kopf ended and is started again"
        ) == 1

    async def test_kopf_retries_are_logged_once(
        self, api: OperatorApi, start: Start, seen: Seen, caplog: pytest.LogCaptureFixture
    ) -> None:
        api.refuse(503, "starting")
        thread = start(anonymous(api), builder(seen, retries=(0.01, 0.01, 0.01)), backoff=(0.01,))
        await eventually(lambda: thread.lives >= 3)
        assert sum("Request attempt" in record.getMessage() for record in caplog.records) == 1
        assert not [record for record in caplog.records if record.exc_info]

    @pytest.mark.processes
    async def test_new_outage_is_logged_again(
        self, api: OperatorApi, start: Start, seen: Seen, caplog: pytest.LogCaptureFixture
    ) -> None:
        thread = start(anonymous(api), builder(seen, retries=(0.01,)), backoff=(0.01,))
        for _ in range(2):
            await eventually(api.watching)
            lived = thread.lives
            api.refuse(503, "restarting")
            await eventually(lambda: thread.lives > lived)  # noqa: B023 - it ends before the next one
            api.allow()
        assert sum("Request attempt" in record.getMessage() for record in caplog.records) == 2

    async def test_it_survives_a_server_that_starts_later(self, api: OperatorApi, start: Start, seen: Seen) -> None:
        api.refuse(503, "starting", below="/")
        thread = start(anonymous(api), builder(seen), backoff=(0.01,))
        await eventually(lambda: thread.last_error)
        assert isinstance(thread.last_error, Unavailable)
        assert thread.last_error.status == 503
        api.allow()
        await eventually(api.watching)

    async def test_it_survives_an_outage_in_the_middle_of_a_watch(
        self, api: OperatorApi, start: Start, seen: Seen
    ) -> None:
        thread = start(anonymous(api), builder(seen), backoff=(0.01,))
        await eventually(api.watching)
        api.refuse(503, "going down")
        await eventually(lambda: thread.lives >= 2)
        api.allow()
        await eventually(api.watching)
        api.put(resource_slice("afterwards"))
        await eventually(lambda: "afterwards" in seen.names)

    async def test_it_survives_an_error_event(self, api: OperatorApi, start: Start, seen: Seen) -> None:
        thread = start(anonymous(api), builder(seen), backoff=(0.01,))
        await eventually(api.watching)
        api.error_event(500)
        await eventually(lambda: thread.lives == 2 and api.watching())
        assert isinstance(thread.last_error, Unavailable)

    async def test_restarted_watch_is_reported_and_a_continued_one_is_not(
        self, api: OperatorApi, start: Start, seen: Seen
    ) -> None:
        """What happens before kopf lists again reaches no handler as a change."""

        def watches() -> int:
            return sum("watch" in query for _, _, query, _ in api.requests)

        told: list[None] = []
        start(anonymous(api), builder(seen), backoff=(0.01,), watching=lambda: told.append(None))
        await eventually(lambda: told and api.watching())
        api.cut()
        await eventually(lambda: watches() == 2 and api.watching())
        assert len(told) == 1
        api.error_event(410)
        await eventually(lambda: len(told) == 2)
        assert watches() == 3

    async def test_objects_of_a_list_are_neither_read_nor_handled_if_only_changes_are_wanted(
        self, api: OperatorApi, start: Start, seen: Seen
    ) -> None:
        """A controller of 10,000 claims lists them itself."""
        build = builder(seen)

        def build_for_changes() -> tuple[kopf.OperatorRegistry, kopf.OperatorSettings]:
            registry, settings = build()
            settings.watching.chunk_size = 1
            return registry, settings

        for number in range(3):
            api.put(resource_slice(f"before-{number}"))
        start(anonymous(api), build_for_changes, backoff=(), changes_only=True)
        await eventually(api.watching)
        api.put(resource_slice("after", version=2))
        await eventually(lambda: "after" in seen.names)
        assert seen.events == [("ADDED", "after")]
        lists = [query for _, path, query, _ in api.requests if path == SLICES_PATH and "watch" not in query]
        assert [query["limit"] for query in lists] == ["1"]
        (watch,) = [query for _, _, query, _ in api.requests if "watch" in query]
        assert watch["resourceVersion"] == "1"

    async def test_it_survives_an_api_server_that_is_not_there(self, start: Start, seen: Seen) -> None:
        with OperatorApi() as api:
            gone = anonymous(api)
        thread = start(gone, builder(seen), backoff=(0.01,))
        await eventually(lambda: thread.lives >= 2)
        assert isinstance(thread.last_error, Unavailable)
        assert "cannot be reached" in str(thread.last_error)

    async def test_it_survives_a_bug_in_build(
        self, api: OperatorApi, start: Start, seen: Seen, caplog: pytest.LogCaptureFixture
    ) -> None:
        build = builder(seen)
        bugs = [RuntimeError("a bug")]

        def fails_once() -> tuple[kopf.OperatorRegistry, kopf.OperatorSettings]:
            if bugs:
                raise bugs.pop()
            return build()

        thread = start(anonymous(api), fails_once, backoff=(0.01,))
        await eventually(api.watching)
        assert thread.lives == 2
        assert [record.exc_info is not None for record in caplog.records if "kopf failed" in record.message] == [True]

    async def test_kopf_gets_no_timer_to_kill_the_process(self, api: OperatorApi, start: Start, seen: Seen) -> None:
        build = builder(seen)
        built: list[kopf.OperatorSettings] = []

        def careless() -> tuple[kopf.OperatorRegistry, kopf.OperatorSettings]:
            registry, settings = build()
            settings.process.ultimate_exiting_timeout = LONG
            built.append(settings)
            return registry, settings

        start(anonymous(api), careless)
        await eventually(api.watching)
        assert [settings.process.ultimate_exiting_timeout for settings in built] == [None]

    async def test_signal_handlers_are_left_alone(self, api: OperatorApi, start: Start, seen: Seen) -> None:
        mine: list[int] = []
        before = signal.signal(signal.SIGTERM, lambda number, _: mine.append(number))
        try:
            handler = signal.getsignal(signal.SIGTERM)
            thread = start(anonymous(api), builder(seen))
            await eventually(api.watching)
            await asyncio.to_thread(thread.stop, 60)
            assert signal.getsignal(signal.SIGTERM) is handler
            signal.raise_signal(signal.SIGTERM)
            assert mine == [signal.SIGTERM]
        finally:
            signal.signal(signal.SIGTERM, before)


class TestStop:
    async def test_between_two_lives(self, api: OperatorApi, start: Start, seen: Seen) -> None:
        api.refuse(403, below="/")
        thread = start(anonymous(api), builder(seen), backoff=(LONG,))
        await eventually(lambda: thread.last_error)
        assert await asyncio.to_thread(thread.stop, 60)
        assert thread.lives == 1

    async def test_while_it_watches(self, api: OperatorApi, start: Start, seen: Seen) -> None:
        thread = start(anonymous(api), builder(seen))
        await eventually(api.watching)
        assert thread.ready.is_set()
        assert await asyncio.to_thread(thread.stop, 60)
        assert not thread.ready.is_set()
        assert thread.last_error is None
        await eventually(lambda: not api.watching())

    async def test_before_it_was_started(self, api: OperatorApi, seen: Seen) -> None:
        thread = KopfThread(anonymous(api), builder(seen))
        assert thread.stop()
        thread.start()
        assert await asyncio.to_thread(thread.stop, 60)
        assert not api.requests

    async def test_from_within_build(self, api: OperatorApi, start: Start, seen: Seen) -> None:
        build = builder(seen)
        building, stopped = threading.Event(), threading.Event()

        def slow() -> tuple[kopf.OperatorRegistry, kopf.OperatorSettings]:
            building.set()
            stopped.wait(60)
            return build()

        thread = start(anonymous(api), slow)
        await asyncio.to_thread(building.wait, 60)
        assert not await asyncio.to_thread(thread.stop, 0.0)
        stopped.set()
        assert await asyncio.to_thread(thread.stop, 60)
        assert not api.requests


class TestPart:
    async def test_it_is_ready_and_stops_when_cancelled(self, api: OperatorApi, seen: Seen) -> None:
        thread = KopfThread(anonymous(api), builder(seen), stop_timeout=60)
        ready = asyncio.Event()
        task = asyncio.create_task(thread.run(ready))
        await asyncio.wait_for(ready.wait(), 60)
        await eventually(api.watching)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        assert task.cancelled()
        assert not thread.ready.is_set()
        assert thread.stop(0.0)

    async def test_without_backoff_run_raises_the_error_of_kopf(self, api: OperatorApi, seen: Seen) -> None:
        api.refuse(403, "no")
        thread = KopfThread(anonymous(api), builder(seen), backoff=())
        with pytest.raises(Forbidden, match="kopf: no"):
            await asyncio.wait_for(thread.run(asyncio.Event()), 60)
        assert thread.lives == 1


class TestCredentials:
    async def test_rotated_token_is_used_without_a_restart(self, api: OperatorApi, start: Start, seen: Seen) -> None:
        api.token = "first"
        current = ["first"]

        async def load() -> Connection:
            return Connection(server=api.url, authorization=f"Bearer {current[0]}")

        thread = start(Credentials(await load(), load), builder(seen), backoff=(0.01,))
        await eventually(api.watching)
        current[0] = api.token = "second"
        api.cut()
        await eventually(lambda: api.watching() and api.requests[-1][3] == "Bearer second")
        assert thread.lives == 1

    @pytest.mark.processes
    async def test_rejected_token_stops_the_run_instead_of_retrying(
        self, api: OperatorApi, start: Start, seen: Seen
    ) -> None:
        api.token = "right"

        async def load() -> Connection:
            return Connection(server=api.url, authorization="Bearer wrong")

        thread = start(Credentials(await load(), load), builder(seen), backoff=(LONG,))
        await eventually(lambda: thread.last_error)
        assert isinstance(thread.last_error, KubeError)
        assert "does not accept our credentials" in str(thread.last_error)
        assert len(api.requests) <= 4
