"""Test beds: a sandbox or a real cluster that tests share, and a harness for each test."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ValidationError

from dra_kit.author.driver import Driver
from dra_kit.author.model import rule_text, short_repr
from dra_kit.author.target import load_driver, load_drivers
from dra_kit.errors import ConfigurationError
from dra_kit.kubernetes.release import FeatureGates
from dra_kit.sandbox.cluster import Sandbox, SandboxSettings
from dra_kit.sandbox.drivers.sandbox_driver import (
    SandboxDriver,
    device_classes,
    project_settings,
    require_distinct_drivers,
    successor_loader,
)
from dra_kit.sandbox.drivers.settings import settings_by_driver
from dra_kit.sandbox.stories.facts import Cluster
from dra_kit.sandbox.stories.manifests import apply_files
from dra_kit.sandbox.stories.namespace import StoryNamespace, namespace_name
from dra_kit.testing.background import Background
from dra_kit.testing.harness import Harness
from dra_kit.testing.real import real_cluster

__tracebackhide__ = True  # pytest shows the test's own line instead
# The roles run in threads, which would import them at once. pytest rewrites what belongs to a plugin as it is imported,
# and early releases of Python 3.11 cannot do that in two threads at a time (SystemError, CPython gh-106905).
_ROLES: Final = ("dra_kit.node.agent", "dra_kit.controller.agent", "dra_kit.admission.agent")


@dataclass(frozen=True)
class TestBed:
    """A cluster in which drivers run.

    Attributes:
        cluster: it.
        background: whose event loop it belongs to.
        timeout: seconds that each wait of a test may take.
    """

    __test__ = False  # no test, whatever pytest makes of the name

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
        """Open the harness of one test: a namespace of its own, and nothing left over in the end.

        Args:
            name: of the test.
            directory: relative paths of manifests start here.
            labels: of the namespace.
            process: each driver has a process of its own, which can be killed.
            killed_after: the step after which a driver is killed; empty for none.
            killed_driver: its name; empty for the only one.

        Raises:
            AssertionError: something is left over after the test.
            ConfigurationError: it is not clear which driver is to be killed.
            NotReached: the driver has not come to the step.
        """
        with open_harness(
            self.cluster,
            self.background,
            name,
            directory=directory,
            timeout=self.timeout,
            labels=labels or {},
            process=process or bool(killed_after),
            killed_after=killed_after,
            killed_driver=killed_driver,
        ) as harness:
            yield harness


@contextmanager
def sandbox(
    *targets: str,
    nodes: int = 1,
    settings: Mapping[str, object] | None = None,
    editable: Sequence[str] = (),
    alpha: bool = False,
    time_scale: float = 10.0,
    timeout: float = 60.0,
) -> Iterator[TestBed]:
    """Start a sandbox with a driver, or several, which have published their devices when the block begins.

    Args:
        *targets: the drivers: ``module:attr``, ``./file.py`` or a project folder, without any the folder ``.``; the
            DeviceClasses in a folder's ``deviceclasses.yaml`` are applied.
        nodes: how many; ``node-1`` and so on.
        settings: the author's settings, by name; they win over those in the project's
            ``[tool.dra-kit.sandbox.settings]``, and ``{node}`` and ``{directory}`` stand for the same as there. One
            that several drivers have is ``DRIVER.NAME``.
        editable: settings that name files which tests will replace; the driver gets copies. Named as in ``settings``.
        alpha: switch on the alpha features of resource.k8s.io.
        time_scale: the waits of Kubernetes are divided by this.
        timeout: seconds that each wait of a test may take.

    Raises:
        TargetError: a driver cannot be loaded.
        ConfigurationError: a setting is wrong, or two drivers have one name.
        SandboxError: a driver does not come up.
    """
    try:
        drivers = _drivers(targets or (".",), nodes, settings or {})
    except ConfigurationError as error:
        raise error.with_traceback(None) from None  # it tells the author's line
    for role in _ROLES:
        import_module(role)
    gates = FeatureGates.alpha() if alpha else FeatureGates.default()
    wished = SandboxSettings(nodes=nodes, gates=gates, time_scale=time_scale, edited=tuple(editable))
    with Background() as background, background.entered(Sandbox(drivers, wished)) as cluster:
        background.call(apply_files(cluster.client, [path for driver in drivers for path in driver.classes]))
        yield TestBed(cluster, background, timeout)


@contextmanager
def deployed(*targets: str, kubeconfig: Path | None = None, timeout: float = 180.0) -> Iterator[TestBed]:
    """Use a real cluster in which a driver, or several, and their DeviceClasses are deployed.

    Args:
        *targets: the drivers, for their names; without any the folder ``.``.
        kubeconfig: of the cluster; None for the current one.
        timeout: seconds that each wait of a test may take.

    Raises:
        TargetError: a driver cannot be loaded.
        ConfigurationError: the kubeconfig is of no use.
    """
    names = [load_driver(target).name for target in targets or (".",)]
    with Background() as background, background.entered(real_cluster(kubeconfig, names)) as cluster:
        yield TestBed(cluster, background, timeout)


def _drivers(targets: Sequence[str], nodes: int, settings: Mapping[str, object]) -> list[SandboxDriver]:
    loaded = [load_drivers(target, nodes + 1) for target in targets]
    require_distinct_drivers((target, first.name) for target, (first, *_) in zip(targets, loaded, strict=True))
    given = settings_by_driver([first for first, *_ in loaded], settings)
    found = []
    for target, (*drivers, spare) in zip(targets, loaded, strict=True):
        values = {**project_settings(target, spare), **given[spare.name]}
        found.append(
            SandboxDriver(
                tuple(drivers),
                partial(_settings, spare),
                device_classes(target),
                values,
                spare,
                target=target,
                successor=successor_loader(_settings, nodes, values),
            )
        )
    return found


def _settings(driver: Driver[Any, Any], given: Mapping[str, object]) -> BaseModel | None:
    if driver.settings is None:
        return None
    try:
        return driver.settings.model_validate(dict(given), by_name=True, by_alias=False)
    except ValidationError as error:
        texts = (
            f"{'.'.join(map(str, item['loc']))}: {rule_text(item['msg'])}, not {short_repr(item['input'])}"
            for item in error.errors(include_url=False)
        )
        raise ConfigurationError(f"settings of driver {driver.name}: {'; '.join(texts)}") from None


class FailpointNotReached(AssertionError):
    """The driver was to be killed after a step, and did not come to it in the whole test."""


@contextmanager
def open_harness(
    cluster: Cluster,
    background: Background,
    test: str,
    *,
    directory: Path,
    timeout: float,
    labels: Mapping[str, str],
    process: bool,
    killed_after: str,
    killed_driver: str,
) -> Iterator[Harness]:
    """Yield the harness of one test; in the end, delete everything it created.

    Raises:
        AssertionError: something is left over although the test passed: claims, CDI files, records, effects, devices.
        NotReached: the driver was to be killed after a step that it has not reached.
    """
    for driver in cluster.drivers:
        background.call(cluster.control(driver).in_process(process))
    stage = StoryNamespace(cluster, namespace_name("test", test), labels=labels, timeout=timeout)
    background.call(stage.open())
    try:
        if killed_after:
            background.call(cluster.control(killed_driver).kill_after(killed_after))
        yield Harness(cluster, background, stage, directory)
    except BaseException:
        background.call(stage.close())
        raise
    leftovers = background.call(stage.close())
    if leftovers:
        raise AssertionError("left over after the test: " + ", ".join(leftovers))
    if stage.unreached:
        raise FailpointNotReached(
            f"the driver was to be killed after {stage.unreached}, and has not come to it in this test"
        )
