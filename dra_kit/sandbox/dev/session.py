"""The loop of ``dra-kit dev``: what changed, what to do, what to show; manifests are applied again when they change."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from enum import Enum
from pathlib import Path
from typing import Any, Final, Protocol, TextIO, TypeAlias

import click
from msgspec import Struct

from dra_kit.client.api import Client
from dra_kit.client.resources import PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS
from dra_kit.errors import ConfigurationError, KubeError, NotFound, SandboxError
from dra_kit.kubernetes.resource.objects import finalizer_note
from dra_kit.sandbox.cluster import Sandbox, SandboxSettings
from dra_kit.sandbox.dev.driver_process import RollingUpdater
from dra_kit.sandbox.dev.watch import FileWatcher
from dra_kit.sandbox.drivers.sandbox_driver import SandboxDriver
from dra_kit.sandbox.page.history import PageHistory
from dra_kit.sandbox.page.server import PageServer
from dra_kit.sandbox.records import (
    DriverEnded,
    DriverLogged,
    DriverNotServing,
    DriverRefused,
    DriverServing,
    DriverStarting,
    ManifestsApplied,
    ManifestsRefused,
    Record,
)
from dra_kit.sandbox.run.session import remaining_effects, undo_effects
from dra_kit.sandbox.stories.manifests import (
    AppliedManifest,
    KindDiscovery,
    apply_documents,
    dry_run,
    read_manifests,
    sort_for_application,
)
from dra_kit.sandbox.timeline.feed import TimelineFeed, recording_started
from dra_kit.sandbox.timeline.recording import Timeline
from dra_kit.sandbox.views.live import LiveView
from dra_kit.text import escape_unprintable

_BACK_OFF: Final = (0.0, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Seconds before the first, second ... start of a driver that exits unexpectedly, until a file changes."""
_AT_ONCE: Final = 1.0
_OF_ITSELF: Final = 3
"""A non-code file that changes so often within a second of a start is written by the driver itself."""
_WRITE_ELSEWHERE: Final = (
    "give the driver a setting with a path below {directory}, its node's directory, and write there"
)


class FilesChanged(Struct, frozen=True):
    """Files are different."""

    files: Sequence[Path]


class DevRequest(Enum):
    """What the loop is asked to do."""

    RELOAD = "restart the driver from its current files"
    REAPPLY = "recreate the pods of the manifests"
    RESTART = "start the exited driver"
    QUIT = "exit"


class DriverExited(Struct, frozen=True):
    """The driver exited unexpectedly."""

    why: str


Event: TypeAlias = FilesChanged | DriverExited | DevRequest


class DevOptions(Struct, frozen=True, kw_only=True):
    """The options of a ``dra-kit dev`` session.

    Attributes:
        log_level: empty for the author's default.
        record: where to write the timeline; None for the sandbox's own directory, which is deleted with it.
        page: the port of the page, 0 for a free one; None for no page.
    """

    driver: SandboxDriver
    settings: SandboxSettings
    arguments: Sequence[str]
    folders: Sequence[Path]
    files: Sequence[Path] = ()
    manifests: Sequence[Path] = ()
    log_level: str = ""
    record: Path | None = None
    page: int | None = None


class DevSession:
    """One run of ``dra-kit dev``."""

    lasting = True
    """It runs until it is interrupted."""
    exit_code = 0

    def __init__(self, development: DevOptions, display: Display) -> None:
        self._development = development
        self._display = display
        self._timeline = Timeline()
        self._timeline.subscribe(display.read)
        self._page: PageServer | None = None
        if development.page is not None:
            history = PageHistory(development.settings.release)
            self._timeline.subscribe(history.read)
            self._page = PageServer(history, port=development.page, title=development.driver.name)
        self._driver = development.driver.name
        self._manifests = FollowedManifests([*development.driver.classes, *development.manifests])
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._crashes = 0
        self._again: asyncio.TimerHandle | None = None
        self._started = 0.0
        self._is_applied = False
        self._enough = asyncio.Event()
        self._updates: RollingUpdater | None = None
        self._is_slow = False  # the code that is started now
        self._has_changed = False  # since the start of it
        self.remaining: Sequence[str] = ()
        """Changes of hardware that could not be undone at the end."""
        self._at_once: Counter[Path] = Counter()
        self._written: set[Path] = set()  # by the driver's process

    def submit(self, event: Event) -> None:
        """Queue a request to run after the current one; a reload that does not come up is not waited for."""
        self._events.put_nowait(event)
        if event is DevRequest.QUIT:
            self._enough.set()
        elif isinstance(event, FilesChanged):
            self._has_changed = True
            self._abandon()

    def _wait(self, text: str) -> None:
        """Report that new code does not come up yet."""
        self._timeline.append(DriverNotServing(driver=self._driver, message=text))
        self._is_slow = True
        self._abandon()

    def _abandon(self) -> None:
        if self._is_slow and self._has_changed and self._updates is not None:
            self._updates.abandon()

    async def run(self) -> int:
        """Run until the user requests exit; return the exit code.

        Raises:
            SandboxError: the cluster does not come up.
            ConfigurationError: a setting is wrong.
        """
        async with self._page or nullcontext():
            if self._page is not None:
                self._display.announce(f"page: {self._page.url}")
            return await self._run_sandbox()

    async def _run_sandbox(self) -> int:
        development = self._development
        # taken first: what is changed while the cluster starts is seen
        files = [*development.files, *self._manifests.paths]
        watch = FileWatcher(development.folders, files, without=development.record)
        header = recording_started(development.settings.release, title=self._driver)
        feed = TimelineFeed(self._timeline, development.record, header=header, driver_log=False)
        sandbox = Sandbox(development.driver, development.settings, observers=(feed,))
        updates = self._updates = RollingUpdater(
            sandbox,
            development.arguments,
            time_scale=development.settings.time_scale,
            webhook=development.settings.webhook,
            log_level=development.log_level,
            log=self._log,
            waiting=self._wait,
            folders=development.folders,
            writes=self._written.add,
        )
        try:
            await updates.prepare()
            async with sandbox:
                try:
                    await sandbox.or_fail(self._work(sandbox, updates, watch))
                finally:
                    try:
                        self.remaining = await undo_effects(sandbox)
                    except asyncio.CancelledError:  # interrupted after q
                        self.remaining = await remaining_effects(sandbox)
                        raise
                    finally:
                        await updates.stop()
        finally:
            await updates.stop()
            feed.close()
        return self.exit_code

    def _log(self, line: str) -> None:
        self._timeline.append(DriverLogged(driver=self._driver, text=line))

    async def _work(self, sandbox: Sandbox, updates: RollingUpdater, watch: FileWatcher) -> None:
        tasks = [
            asyncio.create_task(work)
            for work in (
                self._obey(sandbox, updates), self._display.show(sandbox), self._follow(watch), self._enough.wait(),
            )
        ]  # fmt: skip
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done():
                    task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def _follow(self, watch: FileWatcher) -> None:
        async for files in watch.changes():
            self.submit(FilesChanged(files))

    async def _obey(self, sandbox: Sandbox, updates: RollingUpdater) -> None:
        """Do one thing after the other."""
        await self._replace(sandbox, updates, "start")
        while True:
            for event in await self._next(updates):
                match event:
                    case FilesChanged(files=files):
                        await self._changed(sandbox, updates, files)
                    case DevRequest.RELOAD:
                        await self._replace(sandbox, updates, "reload")
                    case DevRequest.REAPPLY:
                        await self._apply(sandbox, recreate_pods=True)
                    case DriverExited(why=why):
                        self._timeline.append(DriverEnded(driver=self._driver, how="failed", message=why))
                        self._start_later()
                    case DevRequest.RESTART if updates.serving is None:
                        await self._replace(sandbox, updates, "start again")
                        if updates.serving is None:
                            self._start_later()
                    case DevRequest.RESTART | DevRequest.QUIT:
                        pass

    async def _next(self, updates: RollingUpdater) -> list[Event]:
        """Return the next request; changes that arrived during other work are merged into one."""
        get = asyncio.create_task(self._events.get())
        end = asyncio.create_task(updates.ended())
        try:
            await asyncio.wait([get, end], return_when=asyncio.FIRST_COMPLETED)
            events = [DriverExited(end.result())] if end.done() else []
            found: list[Event] = [get.result()] if get.done() else []
        finally:
            for task in (get, end):
                task.cancel()
            await asyncio.wait([get, end])
        while not self._events.empty():
            found.append(self._events.get_nowait())
        files = [path for event in found if isinstance(event, FilesChanged) for path in event.files]
        others = list(dict.fromkeys(event for event in found if not isinstance(event, FilesChanged)))
        changed: list[Event] = [FilesChanged(list(dict.fromkeys(files)))] if files else []
        return [*events, *changed, *others]  # a change that is of the driver's code takes the place of a later start

    async def _changed(self, sandbox: Sandbox, updates: RollingUpdater, files: Sequence[Path]) -> None:
        given = self._manifests.of(files)
        own = [path for path in files if path not in given and not self._is_written_by_driver(path)]
        if own or (given and updates.serving is None):
            self._crashes = 0
            if self._again is not None:
                self._again.cancel()
            await self._replace(sandbox, updates, named(own or files))
        if given and updates.serving is not None:
            await self._apply(sandbox)

    def _is_written_by_driver(self, path: Path) -> bool:
        """Return whether the driver changes a file that is not code, so that reloads would never stop.

        The process reports what its Python code changes. Other files belong to it if they change after each start.
        """
        if path.suffix == ".py":
            return False
        if path.resolve() in self._written:
            if path not in self._at_once:
                self._log(f"{path} is written by the driver; it is not watched: {_WRITE_ELSEWHERE}")
            self._at_once[path] = _OF_ITSELF
            return True
        if self._at_once[path] < _OF_ITSELF:
            self._at_once[path] = self._at_once[path] + 1 if time.monotonic() - self._started < _AT_ONCE else 0
            if self._at_once[path] == _OF_ITSELF:
                self._log(f"{path} changes whenever the driver starts; it is not watched any more: {_WRITE_ELSEWHERE}")
        return self._at_once[path] >= _OF_ITSELF

    async def _replace(self, sandbox: Sandbox, updates: RollingUpdater, why: str) -> None:
        self._timeline.append(DriverStarting(driver=self._driver, why=why))
        self._is_slow = self._has_changed = False
        try:
            seconds = await updates.replace()
        except SandboxError as error:
            serving = updates.serving is not None
            self._timeline.append(DriverRefused(driver=self._driver, why=why, message=str(error), serving=serving))
            return
        self._timeline.append(DriverServing(driver=self._driver, why=why, duration=seconds))
        self._started = time.monotonic()
        if not self._is_applied:  # the first time, or the webhook of the code before has refused them
            await self._apply(sandbox)

    def _start_later(self) -> None:
        """Restart the exited driver after a back-off, as a kubelet would."""
        wait = _BACK_OFF[min(self._crashes, len(_BACK_OFF) - 1)]
        self._crashes += 1
        self._again = asyncio.get_running_loop().call_later(wait, self.submit, DevRequest.RESTART)

    async def _apply(self, sandbox: Sandbox, *, recreate_pods: bool = False) -> None:
        self._is_applied = False
        try:
            done = await self._manifests.apply(sandbox.client, recreate_pods=recreate_pods)
        except (ConfigurationError, KubeError) as error:
            self._timeline.append(ManifestsRefused(message=str(error)))
            return
        self._is_applied = True
        self._timeline.append(ManifestsApplied(message=done))


_NAMED: Final = 3  # files that are named of those that changed


class Display(Protocol):
    """A reader of the timeline that people look at."""

    def read(self, record: Record) -> None:
        """Take a record."""
        ...

    async def show(self, sandbox: Sandbox) -> None:
        """Show it, as long as there is something to show."""
        ...

    def announce(self, text: str) -> None:
        """Show a line that does not come from the timeline: the address of the page."""
        ...


class LineDisplay:
    """The live view, with the driver's log beside it."""

    def __init__(self, view: LiveView, errors: TextIO) -> None:
        self._view = view
        self._errors = errors

    def read(self, record: Record) -> None:
        """See :class:`Display`."""
        if isinstance(record, DriverLogged):
            click.echo(escape_unprintable(record.text, keep="\t"), file=self._errors)
        self._view.read(record)

    async def show(self, sandbox: Sandbox) -> None:
        """See :class:`Display`: until it is cancelled."""
        del sandbox
        await asyncio.get_running_loop().create_future()

    def announce(self, text: str) -> None:
        """See :class:`Display`."""
        self._view.entry(text, bold=True)


def named(files: Sequence[Path]) -> str:
    """Return files by name, for people."""
    names = list(dict.fromkeys(path.name for path in files))
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


_FIXED: Final = {PODS.kind, RESOURCE_CLAIMS.kind, RESOURCE_CLAIM_TEMPLATES.kind}
"""Kinds whose specs are immutable in the API server."""
_OF_CLAIMS: Final = {RESOURCE_CLAIMS.kind, RESOURCE_CLAIM_TEMPLATES.kind}
_GONE_SECONDS: Final = 45.0
_POLL: Final = 0.05
_Key: TypeAlias = tuple[str, str, str]
"""Kind, namespace and name."""


class FollowedManifests:
    """The manifests of the project and those of ``-f``."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths: tuple[Path, ...] = tuple(paths)
        self._bodies: dict[_Key, Mapping[str, Any]] = {}
        self._applied: dict[_Key, AppliedManifest] = {}

    def of(self, changed: Iterable[Path]) -> list[Path]:
        """Return the changed files that are followed manifests."""
        given = {path.resolve() for path in self.paths}
        return [path for path in changed if given & {path.resolve(), path.resolve().parent}]

    async def apply(self, client: Client, *, recreate_pods: bool = False) -> str:
        """Make the objects match the files; return a summary of the changes, empty if there were none.

        ``recreate_pods`` deletes the pods and claims first, even those that already match the files.

        Raises:
            ConfigurationError: a file is invalid, or an object to recreate would be rejected (nothing is changed in
                both cases), or another object was rejected.
        """
        documents = self._read()
        bodies = {key: body for key, (_, body) in documents.items()}
        gone = self._applied.keys() - bodies.keys()
        changed = {key for key in self._applied.keys() & bodies.keys() if bodies[key] != self._bodies.get(key)}
        recreated = {key for key in changed if key[0] in _FIXED}
        if recreate_pods or any(kind in _OF_CLAIMS for kind, *_ in recreated):
            recreated |= {key for key in self._applied if key[0] == PODS.kind}
        if recreate_pods:
            recreated |= {key for key in self._applied if key[0] == RESOURCE_CLAIMS.kind}
        new = bodies.keys() - self._applied.keys()
        # before anything is deleted
        await dry_run(client, [documents[key] for key in sorted(recreated & documents.keys())])
        await self._delete(client, [*gone, *recreated])
        self._bodies = {key: body for key, body in bodies.items() if key in self._applied and key not in recreated}
        if gone or recreated or changed or new:
            try:
                # what was read above: a file that is saved meanwhile is applied the next time
                applied = await apply_documents(client, sort_for_application(documents.values()))
            except BaseException:
                await self._find(client, new | recreated, bodies)
                raise
            self._applied.update((_key(item.object), item) for item in applied)
            self._bodies = bodies
        parts = {"created": new, "changed": changed - recreated, "recreated": recreated - gone, "deleted": gone}
        return "; ".join(f"{what} {_names(keys)}" for what, keys in parts.items() if keys)

    async def _find(self, client: Client, keys: Iterable[_Key], bodies: Mapping[_Key, Mapping[str, Any]]) -> None:
        """Find the objects that were created before one was rejected, so that the next run treats them as changed."""
        kinds = KindDiscovery(client)
        for key in keys:
            with suppress(KubeError, ConfigurationError):
                resource = await kinds.resource("", bodies[key])
                found = await client.get(resource, key[2], key[1] if resource.namespaced else None)
                self._applied[key] = AppliedManifest(resource, found)

    def _read(self) -> dict[_Key, tuple[str, Mapping[str, Any]]]:
        """Return the objects with their files and positions."""
        found: dict[_Key, tuple[str, Mapping[str, Any]]] = {}
        for path in self.paths:
            if not path.exists():
                raise ConfigurationError(
                    f"-f {path} does not exist any more; create it again, or restart dra-kit dev without it"
                )
            for where, body in read_manifests(path):
                found[_key(body)] = where, body
        return found

    async def _delete(self, client: Client, keys: Iterable[_Key]) -> None:
        """Delete objects, pods first, and wait until they are gone."""
        for key in sorted(keys, key=lambda key: key[0] != PODS.kind):
            item = self._applied[key]
            uid = item.object["metadata"]["uid"]
            place = (item.resource, item.name, item.namespace or None)
            end = time.monotonic() + _GONE_SECONDS
            with suppress(NotFound):
                await client.delete(*place, uid=uid)
                while (found := await client.get(*place))["metadata"]["uid"] == uid:
                    if time.monotonic() > end:
                        raise ConfigurationError(
                            f"{key[0]} {item.name} still exists {_GONE_SECONDS:.0f} s after its deletion"
                            f"{finalizer_note(found)}; find out what blocks the deletion, or stop dra-kit dev"
                        )
                    await asyncio.sleep(_POLL)
            del self._applied[key]


def _key(body: Mapping[str, Any]) -> _Key:
    metadata = body["metadata"]
    return str(body.get("kind")), str(metadata.get("namespace") or "default"), str(metadata.get("name"))


def _names(keys: Iterable[_Key]) -> str:
    return ", ".join(f"{kind} {name}" for kind, _, name in sorted(keys))
