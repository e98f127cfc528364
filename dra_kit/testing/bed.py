"""Test beds: a sandbox or a real cluster that tests share, and a harness for each test."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Literal

from dra_kit.author.driver import Driver
from dra_kit.author.settings import author_settings
from dra_kit.author.target import load_driver, load_drivers
from dra_kit.client.api import discover_release
from dra_kit.errors import ConfigurationError, TargetError
from dra_kit.kubernetes.release import DEFAULT, KubernetesVersion, Release
from dra_kit.sandbox.cluster import Sandbox, SandboxSettings
from dra_kit.sandbox.drivers.sandbox_driver import (
    SandboxDriver,
    device_classes,
    project_settings,
    require_distinct_drivers,
    successor_loader,
)
from dra_kit.sandbox.drivers.settings import settings_by_driver
from dra_kit.sandbox.kubelet.environment import NodeShape
from dra_kit.sandbox.run.detached import leave_record
from dra_kit.sandbox.stories.facts import Cluster
from dra_kit.sandbox.stories.manifests import apply_files
from dra_kit.sandbox.stories.namespace import StoryNamespace, namespace_name
from dra_kit.testing.background import Background
from dra_kit.testing.hardware import FakeHardware
from dra_kit.testing.harness import Harness
from dra_kit.testing.real import real_cluster

__tracebackhide__ = True  # pytest shows the test's own line instead
# The roles run in threads, which would import these modules concurrently. pytest rewrites modules of a plugin when they
# are imported, and early releases of Python 3.11 cannot do that in two threads (SystemError, CPython gh-106905).
_ROLES: Final = ("dra_kit.node.agent", "dra_kit.controller.agent", "dra_kit.admission.agent")


@dataclass(frozen=True)
class TestBed:
    """A cluster in which drivers run.

    Attributes:
        cluster: the sandbox or the real cluster.
        background: the thread of its event loop.
        timeout: the maximum duration of each wait in a test, in seconds.
    """

    __test__ = False  # not a test class, in spite of its name

    cluster: Cluster
    background: Background
    timeout: float

    @contextmanager
    def harness(
        self,
        name: str,
        *,
        directory: Path,
        labels: Mapping[str, str] | None = None,
        process: bool = False,
        killed_after: str = "",
        killed_driver: str = "",
    ) -> Iterator[Harness]:
        """Open the harness of one test, with its own namespace; at the end, delete everything and check for leftovers.

        Args:
            name: the name of the test.
            directory: the base of relative paths of manifests.
            labels: labels of the namespace.
            process: run each driver in its own process, which can be killed.
            killed_after: the step after which a driver is killed; empty for none.
            killed_driver: the name of this driver; required if several run.

        Raises:
            AssertionError: the test passed, but claims, CDI files, records, effects or devices are left over.
            ConfigurationError: the driver to kill is ambiguous.
            FailpointNotReached: the driver did not reach the step.
        """
        for driver in self.cluster.drivers:
            self.background.call(self.cluster.control(driver).in_process(process or bool(killed_after)))
        stage = StoryNamespace(self.cluster, namespace_name("test", name), labels=labels or {}, timeout=self.timeout)
        self.background.call(stage.open())
        try:
            if killed_after:
                self.background.call(self.cluster.control(killed_driver).kill_after(killed_after))
            yield Harness(self.cluster, self.background, stage, directory)
        except BaseException:
            self.background.call(stage.close())
            raise
        leftovers = self.background.call(stage.close())
        if leftovers:
            raise AssertionError("left over after the test: " + ", ".join(leftovers))
        if stage.unreached:
            raise FailpointNotReached(
                f"the driver never reached {stage.unreached} in this test, after which it should have been killed"
            )

    @property
    def kubernetes(self) -> KubernetesVersion:
        """The release of Kubernetes of the cluster.

        Raises:
            KubeError: the API server of a real cluster does not say it.
        """
        if isinstance(self.cluster, Sandbox):
            return self.cluster.release.version
        return self.background.call(discover_release(self.cluster.client))

    def hardware(self, setting: str) -> FakeHardware:
        """Return the fake hardware in the folders that an editable setting names, ``DRIVER.NAME`` with several drivers.

        Raises:
            ConfigurationError: the setting names no folder that tests can change, or this is a real cluster.
        """
        if not isinstance(self.cluster, Sandbox):
            raise ConfigurationError("the hardware of a real cluster cannot be simulated; run this in the sandbox")
        driver, _, name = setting.rpartition(".")
        return FakeHardware(self.cluster.control(driver).folders(name))


@contextmanager
def sandbox(
    *targets: str,
    nodes: int = 1,
    settings: Mapping[str, object] | None = None,
    editable: Sequence[str] = (),
    kubernetes: str = "",
    alpha: bool = False,
    time_scale: float = 10.0,
    timeout: float = 60.0,
    network_namespaces: bool = False,
    containers: Literal["process", "podman"] = "process",
    node_capacity: Mapping[str, Mapping[str, str]] | None = None,
    node_labels: Mapping[str, Mapping[str, str]] | None = None,
) -> Iterator[TestBed]:
    """Start a sandbox with one or more drivers, which have published their devices when the block begins.

    ``dra-kit sandbox env`` finds it while it runs.

    Args:
        *targets: the drivers: ``module:attr``, ``./file.py`` or a project folder, by default ``.``; the DeviceClasses
            in a folder's ``deviceclasses.yaml`` are applied.
        nodes: the number of nodes, which are called ``node-1`` and so on.
        settings: the author's settings by name. They override those in the project's
            ``[tool.dra-kit.sandbox.settings]``, with the same meaning of ``{node}`` and ``{directory}``. A setting that
            several drivers have is ``DRIVER.NAME``.
        editable: settings, named as in ``settings``, of files that tests will replace, or of the folder of the fake
            hardware; the driver gets copies.
        kubernetes: the release of Kubernetes to simulate, such as ``"1.36"``; by default the newest final one.
        alpha: switch on the alpha features of resource.k8s.io in that release.
        time_scale: divide the delays of Kubernetes by this factor.
        timeout: the maximum duration of each wait in a test, in seconds.
        network_namespaces: give pods network namespaces, for hooks that move interfaces; only root can create them.
        containers: ``podman`` runs containers in their images, which are in this user's storage; it needs podman 4.3.
        node_capacity: capacity of nodes instead of this machine's, by node name: ``{"node-1": {"cpu": "64"}}``; ``*``
            is every node.
        node_labels: labels of nodes, by node name; ``*`` is every node.

    Raises:
        TargetError: a driver cannot be loaded.
        ConfigurationError: a setting, a release, a capacity or a label is invalid, or two drivers have the same name.
        SandboxError: a driver does not start.
    """
    try:
        drivers = _drivers(targets or (".",), nodes, settings or {})
    except ConfigurationError as error:
        raise error.with_traceback(None) from None  # the message has the author's line
    for role in _ROLES:
        import_module(role)
    try:
        release = Release.named(kubernetes or str(DEFAULT), alpha=alpha)
    except ValueError as error:
        raise ConfigurationError(f"kubernetes (--dra-kubernetes): {error}") from None
    sandbox_settings = SandboxSettings(
        nodes=nodes,
        release=release,
        time_scale=time_scale,
        edited=tuple(editable),
        network_namespaces=network_namespaces,
        containers=containers,
        shapes={
            node: NodeShape(capacity=(node_capacity or {}).get(node, {}), labels=(node_labels or {}).get(node, {}))
            for node in {**(node_capacity or {}), **(node_labels or {})}
        },
    )
    with (
        _noted(drivers),
        Background() as background,
        background.entered(Sandbox(drivers, sandbox_settings)) as cluster,
    ):
        background.call(apply_files(cluster.client, [path for driver in drivers for path in driver.classes]))
        leave_record(cluster)
        yield TestBed(cluster, background, timeout)


@contextmanager
def deployed(*targets: str, kubeconfig: Path | None = None, timeout: float = 180.0) -> Iterator[TestBed]:
    """Use a real cluster in which one or more drivers and their DeviceClasses are deployed.

    Args:
        *targets: the drivers, by default ``.``; only their names are used.
        kubeconfig: the kubeconfig of the cluster; None for the current one.
        timeout: the maximum duration of each wait in a test, in seconds.

    Raises:
        TargetError: a driver cannot be loaded.
        ConfigurationError: the kubeconfig cannot be used.
    """
    names = [load_driver(target).name for target in targets or (".",)]
    with Background() as background, background.entered(real_cluster(kubeconfig, names)) as cluster:
        yield TestBed(cluster, background, timeout)


def _drivers(targets: Sequence[str], nodes: int, settings: Mapping[str, object]) -> list[SandboxDriver]:
    loaded = [_loaded(target, nodes + 1) for target in targets]
    require_distinct_drivers((target, first.name) for target, (first, *_) in zip(targets, loaded, strict=True))
    given = settings_by_driver([first for first, *_ in loaded], settings)
    found = []
    for target, (*drivers, spare) in zip(targets, loaded, strict=True):
        values = {**project_settings(target, spare), **given[spare.name]}
        found.append(
            SandboxDriver(
                tuple(drivers),
                partial(author_settings, spare),
                device_classes(target),
                values,
                spare,
                target=target,
                successor=successor_loader(author_settings, nodes, values),
            )
        )
    return found


_RUNNING: Final[dict[int, Driver[Any, Any]]] = {}
"""For each driver of a module that runs in a test bed, by identity: a copy of it that never ran."""


def _loaded(target: str, number: int) -> list[Driver[Any, Any]]:
    """Load a driver; if another test bed runs the driver of its module, return copies of it that never ran."""
    try:
        found = load_drivers(target, number)
    except TargetError:
        found = load_drivers(target, 1)
        if id(found[0]) not in _RUNNING:  # otherwise, it cannot be copied because it runs
            raise
    spare = _RUNNING.get(id(found[0]))
    return found if spare is None else [spare.for_another_node() for _ in range(number)]


@contextmanager
def _noted(drivers: Sequence[SandboxDriver]) -> Iterator[None]:
    """Note which drivers run."""
    new = {id(driver.drivers[0]): driver.spare for driver in drivers if driver.spare is not None}
    _RUNNING.update(new)
    try:
        yield
    finally:
        for identity in new:
            del _RUNNING[identity]


class FailpointNotReached(AssertionError):
    """The driver did not reach the step after which it should have been killed."""
