"""One run of ``dra-kit sandbox``, from the first node to the report."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from dra_kit.apiserver.authentication import Authenticator
from dra_kit.apiserver.server import ApiServer
from dra_kit.client.api import Client
from dra_kit.client.credentials import Credentials
from dra_kit.client.resources import PODS, REPLICA_SETS, Resource
from dra_kit.errors import ConfigurationError, DraKitError, NotFound
from dra_kit.files import replace_private
from dra_kit.kubernetes.release import KubernetesVersion, Release
from dra_kit.kubernetes.resource.objects import object_key, pod_claims
from dra_kit.kubernetes.values.json import ObjectView
from dra_kit.sandbox.charts import (
    Capabilities,
    Chart,
    ChartInstaller,
    ChartRegistrations,
    InstalledChart,
    parse_charts,
)
from dra_kit.sandbox.cluster import USER_AGENT, Sandbox, SandboxSettings
from dra_kit.sandbox.cluster_copy import ClusterCopy
from dra_kit.sandbox.controllers.certificates import serve_certificate_kinds
from dra_kit.sandbox.controllers.workloads import WORKLOADS
from dra_kit.sandbox.drivers.sandbox_driver import SandboxDriver
from dra_kit.sandbox.page.history import PageHistory
from dra_kit.sandbox.page.server import PageServer
from dra_kit.sandbox.records import RunEnded
from dra_kit.sandbox.run.detached import is_detached
from dra_kit.sandbox.run.observers import CopyTrial, FilesStory, FolderObserver, RunDisplay, drivers_without_devices
from dra_kit.sandbox.stories.completion import pods_of_workloads
from dra_kit.sandbox.stories.manifests import Manifest, apply_files, in_order
from dra_kit.sandbox.stories.runner import StoryObserver, StoryResult, run_story
from dra_kit.sandbox.stories.story import Story
from dra_kit.sandbox.timeline.feed import TimelineFeed, recording_started
from dra_kit.sandbox.timeline.recording import Timeline
from dra_kit.sandbox.timeline.report import PodProblems, RunReport, writes_by_agent
from dra_kit.sandbox.views.live import LiveView
from dra_kit.text import counted

_CLEAN_SECONDS: Final = 60.0


class RunTask(Struct, frozen=True, kw_only=True):
    """What to do in the cluster.

    Attributes:
        files: manifests to apply; files and folders.
        stories: stories to run, one after the other.
        timeout: seconds for the pods of the files, and for each step of a story.
        keep: do not clean up at the end, until the run is interrupted.
        charts: folders of helm charts to install before the files are applied, each with its files of values.
        record: where to write the timeline; None for the sandbox's own directory, which is deleted with it.
        page: the port of the page, 0 for a free one; None for no page.
    """

    files: tuple[Path, ...] = ()
    stories: tuple[Story, ...] = ()
    timeout: float = 60.0
    keep: bool = False
    report: Path | None = None
    record: Path | None = None
    charts: tuple[tuple[Path, tuple[Path, ...]], ...] = ()
    page: int | None = None


class SandboxSession:
    """One run of ``dra-kit sandbox``; ``ready`` is called once devices are published and the files are applied.

    Raises:
        ConfigurationError: a folder is not a chart, a file of manifests is invalid, or none of them contains an object.
    """

    def __init__(
        self,
        drivers: Sequence[SandboxDriver],
        settings: SandboxSettings,
        task: RunTask,
        view: LiveView,
        *,
        ready: Callable[[Sandbox], None] = lambda _: None,
    ) -> None:
        self._drivers = drivers
        self._charts = parse_charts(task.charts)
        self._manifests = read_files(task.files)
        self._installed: list[tuple[ChartInstaller, InstalledChart]] = []
        self._unregistered: list[tuple[ChartInstaller, InstalledChart, ChartRegistrations]] = []
        self._settings = replace(settings, charts=tuple(chart.name for chart in self._charts))
        self._task = task
        self._view = view
        self._ready = ready
        self._report: RunReport | None = None
        timeline, problems = Timeline(begin=view.begin), PodProblems()
        title = " and ".join(item.name for item in drivers)
        feed = TimelineFeed(timeline, task.record, header=recording_started(settings.release, title=title))
        view.follow(timeline)
        timeline.subscribe(problems.read)
        if task.report is not None:
            self._report = RunReport()
            timeline.subscribe(self._report.read)
        self._page: PageServer | None = None
        if task.page is not None:
            history = PageHistory(settings.release)
            timeline.subscribe(history.read)
            self._page = PageServer(history, port=task.page, title=title)
        self._shown = RunDisplay(view=view, timeline=timeline, feed=feed, problems=problems)
        self.lasting: bool = False
        """Whether everything is done and only an interruption is waited for."""
        self.remaining: Sequence[str] = ()
        """Changes of hardware that could not be undone at the end."""

    @property
    def page(self) -> str:
        """The URL of the page, with the token; empty without a page."""
        return self._page.url if self._page is not None else ""

    @property
    def exit_code(self) -> int:
        """0 when all was as it should be so far, else 1."""
        return 1 if self._shown.failures else 0

    async def run(self) -> int:
        """Run the task, always clean up, and return the exit code: 0 if everything succeeded, else 1.

        Raises:
            SandboxError: the cluster or a driver does not come up.
            ConfigurationError: a file is invalid, or one of its objects was rejected.
        """
        async with self._page or nullcontext():
            if self._page is not None and not is_detached():  # what a sandbox in the background prints is in its log
                self._view.entry(f"page: {self._page.url}", bold=True, recorded=False)
            return await self._run_sandbox()

    async def _run_sandbox(self) -> int:
        begin = time.monotonic()
        sandbox = Sandbox(self._drivers, self._settings, observers=(self._shown.feed,))
        try:
            await self._check_remedy()
            async with sandbox:
                try:
                    await sandbox.or_fail(self._work(sandbox))
                finally:
                    await self._undo(sandbox)
                    await self._uninstall(sandbox)
        finally:
            seconds = time.monotonic() - begin
            self._shown.timeline.append(
                RunEnded(
                    drivers=tuple(sandbox.drivers),
                    passed=not self._shown.failures,
                    duration=seconds,
                    failures=tuple(self._shown.failures),
                    leftovers=tuple(self._shown.leftovers),
                    api_writes=writes_by_agent(sandbox.control_plane.server.requests),
                )
            )
            self._shown.feed.close()
            self._write_report()
        return self.exit_code

    async def _check_remedy(self) -> None:
        """Apply the files to a second API server with the saved objects, before anything is scheduled.

        Beside charts and programs they are not tried: they may need what these install.

        Raises:
            ConfigurationError: a file is invalid, or one of its objects would be rejected.
        """
        copy, files = self._settings.copy, self._task.files
        if copy is None or not files:
            return
        if self._charts or self._settings.commands:
            return
        server = ApiServer(
            release=self._settings.release,
            runtime_config=self._settings.runtime_config,
            tls=True,
            authenticator=Authenticator(),
        )
        copy.restore(server.api)
        server.enforce_quotas()
        async with server, Client(Credentials(server.connection()), user_agent=USER_AGENT, warnings=False) as client:
            await serve_certificate_kinds(client)
            await apply_files(client, [*(path for driver in self._drivers for path in driver.classes), *files])

    async def _undo(self, sandbox: Sandbox) -> None:
        def show(number: int) -> None:
            self._view.entry(f"deleting pods to undo {counted(number, 'change')} of hardware", fg="yellow")

        if self._shown.leftovers:  # the pods are deleted, and all of it is reported
            self.remaining = await remaining_effects(sandbox)
            return
        try:
            self.remaining = await undo_effects(sandbox, show)
        except asyncio.CancelledError:  # interrupted again
            self.remaining = await remaining_effects(sandbox)
            raise
        self._shown.leftovers.extend(self.remaining)
        self._shown.failures.extend(f"left over: {text}" for text in self.remaining)

    async def _work(self, sandbox: Sandbox) -> None:
        if sandbox.namespaces:
            self._view.entry(sandbox.namespaces)
        await apply_files(sandbox.client, [path for driver in self._drivers for path in driver.classes])
        await serve_certificate_kinds(sandbox.client)
        trial = None
        if self._settings.copy is not None:
            release, keep = self._settings.release, self._task.keep
            trial = CopyTrial(sandbox, self._shown, release, self._task.timeout, explain=keep or not self._task.files)
            await trial.begin()
        for chart in self._charts:
            await self._install(sandbox, chart)
        for text in drivers_without_devices(sandbox):
            self._view.entry(text, fg="yellow")
        for story in self._task.stories:
            await self._story(sandbox, story)
        if self._task.files and trial is not None:
            await trial.apply(self._task.files)
            self._ready(sandbox)
            if self._task.keep:
                await self._last(sandbox)
        elif self._task.files:
            await self._files(sandbox)
        elif not self._task.stories or self._task.keep:
            self._ready(sandbox)
            await self._last(sandbox)
        self._judge_registrations(sandbox)

    def _judge_registrations(self, sandbox: Sandbox) -> None:
        """Fail the run if a program or the driver of a chart was not ready in time, and still is not.

        Without files and stories nothing is judged: the user may still be at work on the program.
        """
        if not (self._task.files or self._task.stories):
            return
        texts = [*sandbox.never_ready]
        for installer, installed, registrations in self._unregistered:
            found = registrations.never_registered(installer.pods(installed))
            texts += [f"chart {installed.chart.name}: {text}" for text in found]
        for text in texts:
            self._view.entry(text, bold=True, fg="red")
        self._shown.failures.extend(texts)

    async def _install(self, sandbox: Sandbox, chart: Chart) -> None:
        """Install a chart, wait until its pods are ready and its driver is registered, and show what is not."""
        api = sandbox.control_plane.server.api
        installer = ChartInstaller(sandbox.client, sandbox.informers, sandbox.images, lambda: Capabilities.of(api))
        registrations = ChartRegistrations(sandbox.nodes, sandbox.informers)
        installed = await installer.install(chart)
        self._installed.append((installer, installed))
        self._view.entry(
            f"chart {chart.name}: {counted(installed.count, 'object')} in namespace {chart.name}", bold=True
        )
        self._view.details(f"{kind} is not served here: left out" for kind in installed.skipped)
        lacking = await installer.ready(installed, self._task.timeout)
        if not lacking:
            missing = await registrations.missing(installer.pods(installed))
            for text in missing:
                self._view.entry(f"chart {chart.name}: {text}", fg="yellow")
            if missing:
                self._unregistered.append((installer, installed, registrations))
            lacking = installer.lacking(installed)  # a container may have exited since
        if lacking:
            self._view.entry(f"chart {chart.name} is not ready", bold=True, fg="red")
            self._view.details(lacking)
            self._shown.failures.extend(f"chart {chart.name}: {text}" for text in lacking)
        else:
            self._view.entry(f"chart {chart.name} is ready", bold=True, fg="green")

    async def _uninstall(self, sandbox: Sandbox) -> None:
        """Remove the charts that have hooks for it, the last one first; everything else ends with the sandbox."""
        for installer, installed in reversed(self._installed):
            title = f"chart {installed.chart.name}"
            if not installed.has_hooks_of_deletion:
                continue
            self._view.entry(f"{title} is deleted: its hooks run", bold=True)
            try:
                async with asyncio.timeout(_UNINSTALL_SECONDS):
                    await sandbox.control_plane.or_fail(installer.uninstall(installed))
            except (DraKitError, TimeoutError) as error:
                late = (
                    f"{title}: its hooks have not finished within {_UNINSTALL_SECONDS:.0f} s; look at their pods' logs"
                )
                text = late if isinstance(error, TimeoutError) else str(error)
                self._view.entry(text, bold=True, fg="red")
                self._shown.failures.append(text)

    async def _story(self, sandbox: Sandbox, story: Story) -> None:
        self._ready(sandbox)
        last = story is self._task.stories[-1] and not self._task.files
        observer = FolderObserver(self._shown, self._until_interrupted(sandbox) if last else None)
        self._show(await self._run(sandbox, story, observer))

    async def _files(self, sandbox: Sandbox) -> None:
        files = FilesStory(
            sandbox,
            self._shown,
            self._until_interrupted(sandbox),
            ready=self._ready,
            timeout=self._task.timeout,
            release=self._settings.release,
        )
        result = await self._run(sandbox, files.story(self._manifests), files)
        if not result.passed and not self._shown.failures:
            self._show(result)  # it has not begun

    async def _run(self, sandbox: Sandbox, story: Story, observer: StoryObserver) -> StoryResult:
        timeout = self._task.timeout
        return await run_story(story, sandbox, observer=observer, timeout=timeout, clean_up=_CLEAN_SECONDS)

    def _show(self, result: StoryResult) -> None:
        self._shown.feed.poll()
        first, *others = result.lines
        self._view.entry(first, bold=True, fg="green" if result.passed else "red")
        self._view.details(others)
        if not result.passed:
            self._shown.failures.append(result.report())

    def _until_interrupted(self, sandbox: Sandbox) -> Callable[[], Awaitable[None]] | None:
        """Return what a story waits for before anything is deleted."""
        return (lambda: self._last(sandbox)) if self._task.keep else None

    async def _last(self, sandbox: Sandbox) -> None:
        """Wait until the run is interrupted."""
        self._judge_registrations(sandbox)
        self._view.entry("everything runs until Ctrl-C", bold=True)
        self._view.detail(f"kubectl --kubeconfig {sandbox.kubeconfig} get pods")
        if sandbox.nodes and not (sandbox.drivers or sandbox.programs):
            self._view.detail('eval "$(dra-kit sandbox env)"   in the shell that starts a driver')
        self.lasting = True
        await asyncio.get_running_loop().create_future()

    def _write_report(self) -> None:
        path = self._task.report
        if path is None or self._report is None:
            return
        try:
            replace_private(path, (json.dumps(self._report.report(), indent=2) + "\n").encode())
        except OSError as error:
            raise ConfigurationError(f"--report {path} cannot be written: {error.strerror}") from None


def read_files(paths: Sequence[Path]) -> tuple[Manifest, ...]:
    """Return the objects of the files and folders of ``-f``, in the order in which they are applied.

    Raises:
        ConfigurationError: a file is invalid, or none of the files contains an object.
    """
    manifests = tuple(Manifest(where, body) for where, body in in_order(paths))
    if paths and not manifests:
        names = ", ".join(map(str, paths))
        raise ConfigurationError(f"-f {names}: no Kubernetes object found; add one, or leave out -f")
    return manifests


def with_copy(
    settings: SandboxSettings, saved: Path, gates: str, *, alpha: bool, version: KubernetesVersion | None = None
) -> SandboxSettings:
    """Return settings that begin with a saved cluster, in its release.

    Args:
        settings: of the sandbox.
        saved: the path of the saved cluster.
        gates: changes of its feature gates, as in ``--feature-gates``.
        alpha: switch on the features that are alpha in its release.
        version: of another release, after whose rules the objects are judged as if the cluster had been upgraded.

    Raises:
        ConfigurationError: the saved cluster cannot be read, or a feature gate is invalid.
    """
    copy = ClusterCopy.read(saved, version)
    release = Release.alpha(copy.release.version) if alpha else copy.release
    try:
        release = release.switched(gates)
    except ValueError as error:
        raise ConfigurationError(f"--feature-gates: {error}") from None
    return replace(settings, copy=copy.served(release, settings.runtime_config), release=release)


_UNINSTALL_SECONDS: Final = 30.0  # of each chart
_UNDO_SECONDS: Final = 10.0
_GRACE_SECONDS: Final = 1
_POLL: Final = 0.05


async def undo_effects(sandbox: Sandbox, begun: Callable[[int], None] = lambda _: None) -> list[str]:
    """Delete the pods whose claims keep changes of hardware in force; return the changes that remain.

    It takes at most ten seconds, and no time if there are none. ``begun`` is called with the number of changes.
    """
    found = await remaining_effects(sandbox)
    if found:
        begun(len(found))
        with suppress(DraKitError, TimeoutError):  # the cluster fails, or a driver cannot undo them
            async with asyncio.timeout(_UNDO_SECONDS):
                await sandbox.or_fail(_release(sandbox))
    return await remaining_effects(sandbox)


async def _release(sandbox: Sandbox) -> None:
    while await remaining_effects(sandbox):
        for resource, item in _holders(sandbox):
            namespace, name = object_key(item)
            grace = _GRACE_SECONDS if resource == PODS else None
            with suppress(NotFound):
                await sandbox.client.delete(resource, name, namespace, grace_period_seconds=grace)
        await asyncio.sleep(_POLL)


def _holders(sandbox: Sandbox) -> list[tuple[Resource, ObjectView]]:
    """Return the pods with claims and their workloads that are not being deleted; others may be drivers."""
    objects = sandbox.informers.objects
    pods = [pod for pod in objects(PODS).values() if any(pod_claims(pod))]
    sets = objects(REPLICA_SETS).values()
    found: list[tuple[Resource, ObjectView]] = [
        (resource, item)
        for resource in WORKLOADS
        for item in objects(resource).values()
        if pods_of_workloads({item["metadata"]["uid"]}, sets, pods)
    ]
    found += [(PODS, pod) for pod in pods]
    return [(resource, item) for resource, item in found if "deletionTimestamp" not in item["metadata"]]


async def remaining_effects(sandbox: Sandbox) -> list[str]:
    """Return the changes of hardware in force that would outlive the sandbox."""
    several = len(sandbox.nodes) > 1
    return [
        f"{text} on {node.name}" if several else text
        for node in sandbox.nodes
        for text in await asyncio.to_thread(node.effects)
    ]
