"""Helm charts of drivers: rendered by helm, and installed and removed with their hooks, as helm does.

Sources: Helm 3.18 ``pkg/action/install.go``, ``uninstall.go`` and ``hooks.go``, and ``pkg/release/hook.go``.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple, Self

import yaml
from msgspec import Struct
from msgspec.structs import replace

from dra_kit.apiserver.api import Api
from dra_kit.client.api import Client
from dra_kit.client.resources import CUSTOM_RESOURCE_DEFINITIONS, NAMESPACES, PODS, REPLICA_SETS, RESOURCE_SLICES
from dra_kit.errors import ConfigurationError, Conflict, NotFound, SandboxError
from dra_kit.kubernetes.manifests.documents import SourceFile, read_objects, read_values, source_file
from dra_kit.kubernetes.resource.names import dns_label
from dra_kit.kubernetes.resource.objects import containers, init_containers, object_name
from dra_kit.kubernetes.values.json import ObjectView
from dra_kit.sandbox.containers.images import ImageStore, repository
from dra_kit.sandbox.controllers.workloads import WORKLOADS
from dra_kit.sandbox.drivers.command_processes import PUBLISH_SECONDS, READY_SECONDS, unconnected
from dra_kit.sandbox.drivers.node import SandboxNode
from dra_kit.sandbox.informers import SharedInformers
from dra_kit.sandbox.stories.completion import pods_of_workloads, workload_shortfall
from dra_kit.sandbox.stories.manifests import AppliedManifest, KindDiscovery, apply_object, in_namespace

HELM_VARIABLE: Final = "HELM"
"""Environment: the path of helm."""
_CHART_FILE: Final = "Chart.yaml"
_LOCK_FILE: Final = "Chart.lock"
_VALUES_FILE: Final = "values.yaml"
_HOOK: Final = "helm.sh/hook"
_WEIGHT: Final = "helm.sh/hook-weight"
_DELETE_POLICY: Final = "helm.sh/hook-delete-policy"
_EVENTS: Final = ("pre-install", "post-install", "pre-delete", "post-delete")
_RESOURCE_POLICY: Final = "helm.sh/resource-policy"
_BEFORE_CREATION: Final = "before-hook-creation"
_SUCCEEDED: Final = "hook-succeeded"
_FAILED: Final = "hook-failed"
_OWN_GROUPS: Final = frozenset({"", "apps", "autoscaling", "batch", "policy"})  # of Kubernetes, without a domain
_NAME_MAX: Final = 53  # of a release
_HELM_SECONDS: Final = 60.0
_HOOK_SECONDS: Final = 60.0
_POLL: Final = 0.05
_STUCK_SECONDS: Final = 5.0  # containers may wait for an object that is created a moment later
_STUCK: Final = frozenset(
    {"ErrImageNeverPull", "CreateContainerConfigError", "CreateContainerError", "RunContainerError", "CrashLoopBackOff"}
)
"""Reasons of containers that do not run, and probably never will."""


class Chart(Struct, frozen=True):
    """A chart on this machine.

    Attributes:
        name: of the chart; its release and its namespace have the same.
        values: files, in increasing priority.
    """

    name: str
    directory: Path
    values: tuple[Path, ...] = ()


def parse_charts(given: Sequence[tuple[Path, Sequence[Path]]]) -> tuple[Chart, ...]:
    """Return the charts in folders, each with its files of values.

    Raises:
        ConfigurationError: a folder is not a chart, or two charts have the same name.
    """
    found: dict[str, Chart] = {}
    for directory, values in given:
        chart = Chart(_name(directory), directory, tuple(values))
        if chart.name in found:
            raise ConfigurationError(
                f"--chart {directory} has the name {chart.name}, like {found[chart.name].directory}; install one of "
                "them with helm and the sandbox's kubeconfig"
            )
        found[chart.name] = chart
    return tuple(found.values())


def _name(directory: Path) -> str:
    """Return the name of the chart in a folder.

    Raises:
        ConfigurationError: the folder is not a chart.
    """
    file = directory / _CHART_FILE
    if not file.exists():
        raise ConfigurationError(
            f"--chart {directory} is not a chart: it has no {_CHART_FILE}; use the folder that contains it"
        )
    about = next(iter(read_values(source_file(file))), None)
    if not isinstance(about, Mapping) or "name" not in about:
        raise ConfigurationError(f"{file} has no name; correct it")
    name = about["name"]
    if not isinstance(name, str) or not name or dns_label(name) or len(name) > _NAME_MAX:
        raise ConfigurationError(f"{file}: {name!r} is not a valid name of a release; correct it")
    return name


def find_helm(environment: Mapping[str, str] = os.environ) -> str:
    """Return the path of helm: that of the variable ``HELM``, or the one on the ``PATH``.

    Raises:
        ConfigurationError: there is none.
    """
    wanted = environment.get(HELM_VARIABLE, "helm")
    found = shutil.which(wanted, path=environment.get("PATH", os.defpath))
    if found is None:
        where = (
            f"{HELM_VARIABLE}={wanted} is not a program" if HELM_VARIABLE in environment else "it is not in the PATH"
        )
        raise ConfigurationError(
            f"--chart needs helm, and {where}; install helm, or set {HELM_VARIABLE} to its path. Without helm, render "
            "the chart elsewhere and use -f"
        )
    return found


class Capabilities(NamedTuple):
    """What templates of a chart know of the cluster, as ``.Capabilities``.

    Attributes:
        kube_version: of the API server: ``v1.37.1``.
        api_versions: what it serves, as ``GROUP/VERSION`` and ``GROUP/VERSION/KIND``.
    """

    kube_version: str
    api_versions: Sequence[str]

    @classmethod
    def of(cls, api: Api) -> Self:
        """Return those of an API server."""
        kinds = list(api.registry)
        groups = dict.fromkeys(kind.api_version(version) for kind in kinds for version in kind.types)
        served = [f"{kind.api_version(version)}/{kind.kind}" for kind in kinds for version in kind.types]
        return cls(api.release.version.published, [*groups, *served])


async def render(chart: Chart, helm: str, capabilities: Capabilities) -> list[tuple[str, dict[str, Any]]]:
    """Return the objects of a chart in the order in which helm installs them, each with its position.

    Args:
        chart: the chart.
        helm: the path of helm.
        capabilities: of the cluster.

    Raises:
        ConfigurationError: helm does not render it.
    """
    try:
        output = await _template(chart, helm, capabilities)
    except _HelmFailure as failure:
        if not failure.lacks_charts:
            raise
        with TemporaryDirectory(prefix="dra-") as folder:
            copy = Path(folder) / "chart"
            if not copy_without_disabled_charts(chart, copy):
                raise
            output = await _template(replace(chart, directory=copy), helm, capabilities, chart.directory)
    file = SourceFile(f"chart {chart.name}", output.decode(errors="replace"), explicit=False)
    return read_objects(file)


class _HelmFailure(ConfigurationError):
    """helm does not render a chart; ``lacks_charts`` says that charts on which it depends are missing."""

    def __init__(self, message: str, *, lacks_charts: bool) -> None:
        super().__init__(message)
        self.lacks_charts = lacks_charts


async def _template(chart: Chart, helm: str, capabilities: Capabilities, shown: Path | None = None) -> bytes:
    """Return what helm renders; ``shown`` is the folder for messages, if it is not that of the chart."""
    given = shown or chart.directory
    words = ["template", chart.name, str(chart.directory), "--namespace", chart.name, "--include-crds"]
    words += ["--kube-version", capabilities.kube_version, "--api-versions", ",".join(capabilities.api_versions)]
    words += [word for file in chart.values for word in ("--values", str(file))]
    process = await asyncio.create_subprocess_exec(
        helm, *words, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(_HELM_SECONDS):
            output, errors = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        raise ConfigurationError(f"--chart {given}: helm has not rendered it within {_HELM_SECONDS:.0f} s") from None
    if process.returncode:
        text = " ".join(errors.decode(errors="replace").split()).removeprefix("Error: ")
        missing = "missing in charts/" in text
        remedy = f"run: helm dependency build {given}" if missing else "correct the chart or its --values"
        raise _HelmFailure(f"--chart {given}: helm cannot render it: {text}; {remedy}", lacks_charts=missing)
    return output


def copy_without_disabled_charts(chart: Chart, folder: Path) -> bool:
    """Copy a chart without the charts on which it depends and which its values switch off; return whether it has some.

    helm wants those, too, although it would leave them out (Helm, ``pkg/chart/v2/util/dependencies.go``).

    Raises:
        ConfigurationError: the chart cannot be read or copied.
    """
    try:
        about = yaml.safe_load((chart.directory / _CHART_FILE).read_text(encoding="utf-8"))
        values: Mapping[str, Any] = {}
        for file in (chart.directory / _VALUES_FILE, *chart.values):
            if file.exists():
                values = _merged(values, yaml.safe_load(file.read_text(encoding="utf-8")) or {})
        dependencies = about.get("dependencies") or []
        kept = [item for item in dependencies if not _is_disabled(item, values)]
        if len(kept) == len(dependencies):
            return False
        shutil.copytree(chart.directory, folder, symlinks=True)
        (folder / _CHART_FILE).write_text(yaml.safe_dump({**about, "dependencies": kept}), encoding="utf-8")
        (folder / _LOCK_FILE).unlink(missing_ok=True)
    except (OSError, yaml.YAMLError, AttributeError, TypeError, ValueError) as error:
        raise ConfigurationError(f"--chart {chart.directory}: it cannot be read: {error}; correct it") from None
    return True


def _is_disabled(dependency: Mapping[str, Any], values: Mapping[str, Any]) -> bool:
    """Return whether the first condition of a dependency to which the values have an answer says no."""
    for path in str(dependency.get("condition") or "").split(","):
        found: Any = values
        for name in path.strip().split("."):
            found = found.get(name) if isinstance(found, Mapping) else None
        if isinstance(found, bool):
            return not found
    return False


def _merged(values: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, Any]:
    """Return values in which others have priority, as helm merges files of values."""
    merged = dict(values)
    for name, value in others.items():
        former = merged.get(name)
        if isinstance(former, Mapping) and isinstance(value, Mapping):
            merged[name] = _merged(former, value)
        else:
            merged[name] = value
    return merged


class InstallPlan(Struct, frozen=True):
    """The objects of a chart in the order of installation; hooks of other events are left out.

    Attributes:
        definitions: CustomResourceDefinitions that are not hooks.
        before: hooks of ``pre-install``.
        objects: everything else that is not a hook.
        after: hooks of ``post-install``.
        before_deletion: hooks of ``pre-delete``.
        after_deletion: hooks of ``post-delete``.
    """

    definitions: tuple[tuple[str, Mapping[str, Any]], ...]
    before: tuple[tuple[str, Mapping[str, Any]], ...]
    objects: tuple[tuple[str, Mapping[str, Any]], ...]
    after: tuple[tuple[str, Mapping[str, Any]], ...]
    before_deletion: tuple[tuple[str, Mapping[str, Any]], ...] = ()
    after_deletion: tuple[tuple[str, Mapping[str, Any]], ...] = ()


def install_plan(documents: Sequence[tuple[str, Mapping[str, Any]]]) -> InstallPlan:
    """Return the order in which the objects of a chart are installed."""
    plain = [item for item in documents if not _events(item[1])]

    def hooks(event: str) -> tuple[tuple[str, Mapping[str, Any]], ...]:
        return tuple(
            sorted((item for item in documents if event in _events(item[1])), key=lambda item: _weight(item[1]))
        )

    before, after, before_deletion, after_deletion = map(hooks, _EVENTS)
    is_definition: Callable[[tuple[str, Mapping[str, Any]]], bool] = lambda item: (  # noqa: E731
        item[1].get("kind") == CUSTOM_RESOURCE_DEFINITIONS.kind
    )
    return InstallPlan(
        definitions=tuple(filter(is_definition, plain)),
        before=before,
        objects=tuple(item for item in plain if not is_definition(item)),
        after=after,
        before_deletion=before_deletion,
        after_deletion=after_deletion,
    )


def _annotation(body: Mapping[str, Any], name: str) -> str:
    return str((body["metadata"].get("annotations") or {}).get(name, ""))


def _events(body: Mapping[str, Any]) -> list[str]:
    return [event.strip() for event in _annotation(body, _HOOK).split(",") if event.strip()]


def _weight(body: Mapping[str, Any]) -> tuple[int, str]:
    """Return the order of a hook: by weight, then by name; the others stay in helm's order, by kind."""
    text = _annotation(body, _WEIGHT)
    weight = int(text) if text.removeprefix("-").isdigit() else 0
    return weight, str(body["metadata"].get("name"))


class InstalledChart(Struct, frozen=True):
    """A chart whose objects exist.

    Attributes:
        plan: what it consists of.
        objects: those that are not hooks, in the order of installation; without CustomResourceDefinitions.
        count: the number of its objects, without hooks.
        skipped: kinds that a cluster has and the sandbox does not serve.
    """

    chart: Chart
    plan: InstallPlan
    objects: tuple[AppliedManifest, ...]
    count: int
    skipped: tuple[str, ...]

    @property
    def workloads(self) -> list[AppliedManifest]:
        """Those of its objects that have pods."""
        return [item for item in self.objects if item.resource in WORKLOADS]

    @property
    def has_hooks_of_deletion(self) -> bool:
        """Whether hooks run when it is removed."""
        return bool(self.plan.before_deletion or self.plan.after_deletion)


class ChartInstaller:
    """Installs charts in a cluster.

    Args:
        client: may do everything.
        informers: what is in the cluster.
        images: what stands for images.
        capabilities: of the cluster, when a chart is installed.
    """

    def __init__(
        self,
        client: Client,
        informers: SharedInformers,
        images: ImageStore,
        capabilities: Callable[[], Capabilities],
    ) -> None:
        self._client = client
        self._images = images
        self._informers = informers
        self._capabilities = capabilities
        self._kinds = KindDiscovery(client)

    async def install(self, chart: Chart) -> InstalledChart:
        """Render a chart and create its objects, in a namespace with its name.

        Raises:
            ConfigurationError: it cannot be rendered, or the API server rejects an object.
            SandboxError: a hook failed.
        """
        plan = install_plan(await render(chart, find_helm(), self._capabilities()))
        with suppress(Conflict):
            await self._client.create(NAMESPACES, {"metadata": {"name": chart.name}})
        skipped: dict[str, None] = {}
        definitions = await self._create(chart, plan.definitions, skipped)
        await self._run_hooks(chart, plan.before, skipped)
        objects = await self._create(chart, plan.objects, skipped)
        await self._run_hooks(chart, plan.after, skipped)
        return InstalledChart(chart, plan, tuple(objects), len(definitions) + len(objects), tuple(skipped))

    async def uninstall(self, installed: InstalledChart) -> None:
        """Delete the objects of a chart, between its hooks; CustomResourceDefinitions stay, and its namespace.

        Raises:
            ConfigurationError: the API server rejects a hook.
            SandboxError: a hook failed. After one of ``pre-delete``, nothing is deleted.
        """
        await self._run_hooks(installed.chart, installed.plan.before_deletion, {})
        for item in reversed(installed.objects):
            if _annotation(item.object, _RESOURCE_POLICY).strip().lower() != "keep":
                with suppress(NotFound):
                    await self._client.delete(item.resource, item.name, item.namespace or None)
        await self._run_hooks(installed.chart, installed.plan.after_deletion, {})

    async def _create(
        self, chart: Chart, documents: Iterable[tuple[str, Mapping[str, Any]]], skipped: dict[str, None]
    ) -> list[AppliedManifest]:
        """Create objects; kinds that are not served are added to ``skipped``."""
        return [
            await apply_object(self._client, self._kinds, where, _owned(chart, body), chart.name)
            for where, body in documents
            if await self._is_served(body, skipped)
        ]

    async def _run_hooks(
        self, chart: Chart, hooks: Sequence[tuple[str, Mapping[str, Any]]], skipped: dict[str, None]
    ) -> None:
        """Run the hooks of an event, one after the other.

        Raises:
            ConfigurationError: the API server rejects one.
            SandboxError: one has failed, or takes too long.
        """
        done: list[AppliedManifest] = []
        failure: SandboxError | None = None
        for where, body in hooks:
            if not await self._is_served(body, skipped):
                continue
            resource = await self._kinds.resource(where, body)
            former = AppliedManifest(resource, in_namespace(resource, body, chart.name))
            await self._delete_hook(former, _BEFORE_CREATION)
            [hook] = await self._create(chart, [(where, body)], skipped)
            try:
                await self._finish_hook(chart, hook)
            except SandboxError as error:
                failure = error
                await self._delete_hook(hook, _FAILED)
                break
            done.append(hook)
        for hook in reversed(done):  # not before: a Job needs its ServiceAccount
            await self._delete_hook(hook, _SUCCEEDED)
        if failure is not None:
            raise failure

    async def _is_served(self, body: Mapping[str, Any], skipped: dict[str, None]) -> bool:
        """Return whether an object can be created; if not, add its kind to ``skipped``."""
        if await self._is_unserved(body):
            skipped[f"{body.get('apiVersion')} {body.get('kind')}"] = None
            return False
        return True

    async def _is_unserved(self, body: Mapping[str, Any]) -> bool:
        """Return whether an object is of a kind of Kubernetes itself that the sandbox lacks."""
        group = str(body.get("apiVersion") or "").rpartition("/")[0]
        if group not in _OWN_GROUPS and not group.endswith(".k8s.io"):
            return False
        try:
            await self._kinds.resource("", body)
        except ConfigurationError:
            return bool(body.get("kind") and body.get("apiVersion"))
        return False

    async def _finish_hook(self, chart: Chart, hook: AppliedManifest) -> None:
        """Wait until a hook has done its work.

        Raises:
            SandboxError: it has failed, or takes too long.
        """
        title = f"chart {chart.name}: hook {hook.resource.kind} {hook.name}"
        deadline = time.monotonic() + _HOOK_SECONDS
        while (outcome := _outcome(await self._current(hook))) == "runs":
            if time.monotonic() > deadline:
                raise SandboxError(f"{title} has not finished within {_HOOK_SECONDS:.0f} s; look at its pods' logs")
            await asyncio.sleep(_POLL)
        if outcome:
            raise SandboxError(f"{title} has failed: {outcome}; look at its pods' logs")

    async def _delete_hook(self, hook: AppliedManifest, policy: str) -> None:
        """Delete a hook if its policies say so, and wait until it is gone; definitions stay.

        Raises:
            SandboxError: it is not gone in time.
        """
        policies = [text.strip() for text in _annotation(hook.object, _DELETE_POLICY).split(",") if text.strip()]
        if policy not in (policies or [_BEFORE_CREATION]) or hook.resource.kind == CUSTOM_RESOURCE_DEFINITIONS.kind:
            return
        deadline = time.monotonic() + _HOOK_SECONDS
        with suppress(NotFound):
            await self._client.delete(hook.resource, hook.name, hook.namespace or None)
            while time.monotonic() < deadline:
                await self._client.get(hook.resource, hook.name, hook.namespace or None)
                await asyncio.sleep(_POLL)
            raise SandboxError(
                f"hook {hook.resource.kind} {hook.name} is not deleted within {_HOOK_SECONDS:.0f} s; look at its "
                "metadata.finalizers"
            )

    async def _current(self, hook: AppliedManifest) -> Mapping[str, Any]:
        if hook.resource.kind not in {"Job", "Pod"}:
            return hook.object
        return {"kind": hook.resource.kind, **await self._client.get(hook.resource, hook.name, hook.namespace)}

    # --- readiness

    async def ready(self, chart: InstalledChart, seconds: float) -> list[str]:
        """Wait until the pods of a chart are ready; return what is not, a text each, with its cause.

        Returns earlier if containers do not start.
        """
        begin = time.monotonic()
        moving = begin  # when a container has last been expected to start
        while lacking := self.lacking(chart):
            now, stuck = time.monotonic(), [text for pod in self.pods(chart) for text in _stuck(pod)]
            moving = moving if stuck else now
            if now > begin + seconds or now > moving + _STUCK_SECONDS:
                break
            await asyncio.sleep(_POLL)
        return lacking

    def pods(self, chart: InstalledChart) -> list[ObjectView]:
        """Return the pods of a chart."""
        uids = {item.object["metadata"]["uid"] for item in chart.workloads}
        objects = self._informers.objects
        return pods_of_workloads(uids, objects(REPLICA_SETS).values(), objects(PODS).values())

    def lacking(self, chart: InstalledChart) -> list[str]:
        """Return what is not ready, a text each, with its cause."""
        found = []
        for item in chart.workloads:
            live = self._informers.objects(item.resource).get((item.namespace, item.name), item.object)
            if text := workload_shortfall({**live, "kind": item.resource.kind}):
                found.append(text)
        stuck = [pod for pod in self.pods(chart) if any(True for _ in _stuck(pod))] if found else []
        causes = [text for pod in stuck for text in _stuck(pod)]
        return [*found, *dict.fromkeys([*causes, *(text for pod in stuck for text in self._without_image(pod))])]

    def _without_image(self, pod: ObjectView) -> Iterator[str]:
        """Yield how the programs of a pod's images can be given, unless the message of a container says so."""
        for container in (*init_containers(pod), *containers(pod)):
            name = container.get("image") or ""
            if self._images.find(name) is None and not self._images.lacking(pod, container):
                yield f"no folder stands for image {name}; --image {repository(name)}=DIR gives its programs and files"


def _owned(chart: Chart, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return an object with the marks of its release."""
    metadata = body["metadata"]
    marks = {"meta.helm.sh/release-name": chart.name, "meta.helm.sh/release-namespace": chart.name}
    labels = {**(metadata.get("labels") or {}), "app.kubernetes.io/managed-by": "Helm"}
    return {
        **body,
        "metadata": {**metadata, "labels": labels, "annotations": {**(metadata.get("annotations") or {}), **marks}},
    }


def _outcome(hook: Mapping[str, Any]) -> str:
    """Return ``runs``, why it has failed, or an empty text: it has succeeded."""
    status = hook.get("status") or {}
    if hook.get("kind") == "Pod":
        phase = str(status.get("phase"))
        return {"Succeeded": "", "Failed": status.get("message") or "its pod has failed"}.get(phase, "runs")
    if hook.get("kind") == "Job":
        for condition in status.get("conditions") or ():
            if condition["status"] == "True" and condition["type"] in {"Complete", "SuccessCriteriaMet"}:
                return ""
            if condition["status"] == "True" and condition["type"] == "Failed":
                return str(condition.get("message") or "its pods have failed")
        return "runs"
    return ""


def _stuck(pod: ObjectView) -> Iterator[str]:
    """Yield why containers of a pod do not start."""
    status = pod.get("status") or {}
    for item in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        waiting = (item.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") in _STUCK:
            where = f"Pod {object_name(pod)}, container {item['name']}"
            yield f"{where}: {waiting['reason']}: {waiting.get('message', '')}"


class ChartRegistrations:
    """Drivers that register with kubelets after this was made; those that did before are not of the chart."""

    def __init__(self, nodes: Sequence[SandboxNode], informers: SharedInformers) -> None:
        self._nodes = {node.name: node for node in nodes}
        self._informers = informers
        self._before = {node.name: set(node.kubelet.plugins.registrations) for node in nodes}

    async def missing(self, pods: Sequence[ObjectView]) -> list[str]:
        """Wait until the pods that are drivers have registered and publish; return a text for each that has not."""
        begin = time.monotonic()
        waiting = self._of_drivers(pods)
        while time.monotonic() < begin + READY_SECONDS and not all(map(self._is_registered, waiting)):  # noqa: ASYNC110
            await asyncio.sleep(_POLL)
        deadline = time.monotonic() + PUBLISH_SECONDS
        while time.monotonic() < deadline and not all(map(self._publishes, waiting)):  # noqa: ASYNC110
            await asyncio.sleep(_POLL)
        return self.never_registered(pods)

    def never_registered(self, pods: Sequence[ObjectView]) -> list[str]:
        """Return a text for each pod that is a driver and is not registered now."""
        return [self._reason(pod) for pod in self._of_drivers(pods) if not self._is_registered(pod)]

    def _of_drivers(self, pods: Sequence[ObjectView]) -> list[ObjectView]:
        return [pod for pod in pods if _registers(pod) and pod["spec"].get("nodeName") in self._nodes]

    def _drivers(self, node: str) -> set[str]:
        registered = self._nodes[node].kubelet.plugins.registrations
        return {driver for path, driver in registered.items() if path not in self._before[node]}

    def _is_registered(self, pod: ObjectView) -> bool:
        node = pod["spec"]["nodeName"]
        return any(map(self._nodes[node].kubelet.plugins.connected, self._drivers(node)))

    def _publishes(self, pod: ObjectView) -> bool:
        node = pod["spec"]["nodeName"]
        drivers = self._drivers(node)
        specs = (item["spec"] for item in self._informers.objects(RESOURCE_SLICES).values())
        return not drivers or any(spec["driver"] in drivers and spec.get("nodeName") in {None, node} for spec in specs)

    def _reason(self, pod: ObjectView) -> str:
        node = self._nodes[pod["spec"]["nodeName"]]
        found = [unconnected(node, driver) for driver in self._drivers(node.name)]
        refusals = "; ".join([*found, *node.kubelet.plugins.refusals.values()])
        reason = refusals or f"no new registration socket is in {node.directory / 'plugins_registry'}"
        return (
            f"Pod {object_name(pod)} runs, but its driver is not registered with the kubelet of {node.name}: {reason}"
        )


def _registers(pod: ObjectView) -> bool:
    """Return whether a pod mounts the kubelet's directory for registration sockets."""
    paths = [str((volume.get("hostPath") or {}).get("path")) for volume in pod["spec"].get("volumes") or ()]
    return any(path.rstrip("/").endswith("plugins_registry") for path in paths)
