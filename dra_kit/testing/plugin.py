"""The pytest plugin: the fixtures ``dra``, ``dra_bed`` and ``dra_hardware``, and their options."""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

import pytest

from dra_kit.errors import DraKitError
from dra_kit.kubernetes.release import KubernetesVersion
from dra_kit.node.failpoints import LIFE_OF_A_CLAIM
from dra_kit.process.logging import shown_fields
from dra_kit.text import escape_unprintable

if TYPE_CHECKING:
    from dra_kit.testing.bed import TestBed
    from dra_kit.testing.hardware import FakeHardware
    from dra_kit.testing.harness import Harness


__tracebackhide__ = True  # pytest shows the test's own line instead


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the settings of the plugin."""
    group = parser.getgroup("dra-kit")
    group.addoption(
        "--dra-kubeconfig",
        metavar="PATH",
        help="run the tests that use the fixture dra on this real cluster, where the driver is deployed",
    )
    group.addoption(
        "--dra-containers",
        choices=("process", "podman"),
        default="process",
        help="run the containers of the sandbox as processes (the default), or have podman run them in their images",
    )
    group.addoption(
        "--dra-kubernetes",
        metavar="RELEASE",
        help="the release of Kubernetes that the sandbox simulates, such as 1.36, instead of the setting "
        "dra_kubernetes",
    )
    parser.addini(
        "dra_kubernetes", "the release of Kubernetes that the sandbox simulates; by default the newest final one"
    )
    parser.addini(
        "dra_target",
        "the driver: module:attr, ./file.py or a project folder; one line for each driver",
        type="linelist",
        default=["."],
    )
    parser.addini(
        "dra_settings",
        "settings of the driver in the sandbox: lines of name=value, or DRIVER.name=value if there are several drivers",
        type="linelist",
    )
    parser.addini("dra_editable", "settings that name files which tests replace", type="args")
    parser.addini(
        "dra_hardware", "the setting that names the folder with the fake hardware, for the fixture dra_hardware"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Add the markers of the plugin.

    Raises:
        pytest.UsageError: two options contradict each other.
    """
    if config.getoption("--dra-kubeconfig") and config.getoption("--dra-kubernetes") is not None:
        raise pytest.UsageError(
            "--dra-kubernetes chooses the release of the sandbox, and the cluster of --dra-kubeconfig has its own; "
            "leave one of them out"
        )
    for line in (
        "dra_kubernetes(since='', until=''): skip the test on older or newer releases of Kubernetes",
        "dra_namespace(labels): labels of the test's namespace",
        "dra_process: run each driver in its own process, so that dra.kill() can terminate it with kill -9",
        "dra_killed(*steps, driver=''): run the test once undisturbed, and once for each step, after which the driver "  # noqa: ISC004 - one line
        "is killed; by default for each step of a claim that the test reaches; driver: required if several run",
    ):
        config.addinivalue_line("markers", line)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that is marked with ``dra_killed`` once for each step."""
    marker = metafunc.definition.get_closest_marker("dra_killed")
    if marker is None or "dra" not in metafunc.fixturenames:
        return
    steps = marker.args or [step.name for step in LIFE_OF_A_CLAIM]
    metafunc.parametrize("dra", ["", *steps], ids=["undisturbed", *steps], indirect=True)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Show the fields of dra-kit's log records in reports: pytest's formatter only shows the message."""
    logging_plugin = session.config.pluginmanager.get_plugin("logging-plugin")
    for name in ("caplog_handler", "report_handler"):
        handler = getattr(logging_plugin, name, None)
        if isinstance(handler, logging.Handler) and handler.formatter is not None:
            handler.setFormatter(_WithFields(handler.formatter))


class _WithFields(logging.Formatter):
    """Adds the fields of dra-kit's log records to the lines of another formatter."""

    def __init__(self, plain: logging.Formatter) -> None:
        super().__init__()
        self._plain = plain

    def format(self, record: logging.LogRecord) -> str:
        """Return the formatted record, with its fields in the first line."""
        text = self._plain.format(record)
        if not record.name.startswith("dra_kit."):
            return text
        line, end, rest = text.partition("\n")
        return f"{line}{shown_fields(record)}{end}{rest}"


_PASSED: Final = pytest.StashKey[bool]()
_UNTIL_TEARDOWN: Final = "dra_until_teardown"
"""Attribute of the reports of a test that passed, and is shown as passed or skipped when it has ended."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note whether a test that is marked with ``dra_killed`` passed: its end shows whether the step was reached."""
    report = yield
    if item.get_closest_marker("dra_killed") is not None and report.passed:
        if report.when == "call":
            item.stash[_PASSED] = True
        if report.when == "call" or (report.when == "teardown" and item.stash.get(_PASSED, False)):
            setattr(report, _UNTIL_TEARDOWN, True)
    return report


def pytest_report_teststatus(report: pytest.CollectReport | pytest.TestReport) -> tuple[str, str, str] | None:
    """Show such a test once: as passed when its teardown passed, else as skipped or as an error."""
    if not getattr(report, _UNTIL_TEARDOWN, False):
        return None
    return ("passed", ".", "PASSED") if report.when == "teardown" else ("", "", "")


def _release(config: pytest.Config) -> str:
    """Return the release to simulate; empty for the default one."""
    return str(config.getoption("--dra-kubernetes") or config.getini("dra_kubernetes") or "")


def _limit(marker: pytest.Mark, name: str) -> KubernetesVersion | None:
    """Return the release that a marker ``dra_kubernetes`` names; None if it names none."""
    text = marker.kwargs.get(name, "")
    if not isinstance(text, str):
        raise pytest.fail.Exception(f"the marker dra_kubernetes: {name}={text!r} is not a text", pytrace=False)
    try:
        return KubernetesVersion.named(text) if text else None
    except ValueError as error:
        raise pytest.fail.Exception(f"the marker dra_kubernetes: {error}", pytrace=False) from None


@pytest.fixture(autouse=True)
def _dra_kubernetes(request: pytest.FixtureRequest) -> None:
    """Skip a test with ``dra`` or ``dra_bed`` on releases that one of its markers ``dra_kubernetes`` excludes."""
    markers = list(request.node.iter_markers("dra_kubernetes"))
    if not markers or "dra_bed" not in request.fixturenames:
        return
    for marker in markers:
        if marker.args or marker.kwargs.keys() - {"since", "until"} or not marker.kwargs:
            raise pytest.fail.Exception(
                "the marker dra_kubernetes takes since and until, such as @pytest.mark.dra_kubernetes(since='1.36')",
                pytrace=False,
            )
    limits = [(_limit(marker, "since"), _limit(marker, "until")) for marker in markers]
    bed: TestBed = request.getfixturevalue("dra_bed")
    version = bed.kubernetes
    for since, until in limits:
        if (since is not None and version < since) or (until is not None and version > until):
            named = " ".join(
                f"{name} {limit}" for name, limit in (("since", since), ("until", until)) if limit is not None
            )
            pytest.skip(f"the cluster is Kubernetes {version}; this test is for releases {named}")


@pytest.fixture(scope="session")
def dra_bed(pytestconfig: pytest.Config) -> Iterator[TestBed]:
    """The cluster with the driver: a sandbox, or that of ``--dra-kubeconfig``; override this fixture to change it."""
    from dra_kit.testing.bed import deployed, sandbox

    targets = [str(target) for target in pytestconfig.getini("dra_target")]
    if kubeconfig := pytestconfig.getoption("--dra-kubeconfig"):
        bed = deployed(*targets, kubeconfig=pytestconfig.invocation_params.dir / kubeconfig)
    else:
        lines = pytestconfig.getini("dra_settings")
        bed = sandbox(
            *targets,
            settings={name.strip(): value.strip() for name, _, value in (line.partition("=") for line in lines)},
            editable=[*pytestconfig.getini("dra_editable"), *filter(None, [pytestconfig.getini("dra_hardware")])],
            kubernetes=_release(pytestconfig),
            containers="podman" if pytestconfig.getoption("--dra-containers") == "podman" else "process",
        )
    with ExitStack() as stack:
        try:
            # TARGETs are relative to the project; tests run in the directory in which pytest was started
            with pytest.MonkeyPatch.context() as patch:
                patch.chdir(pytestconfig.rootpath)
                value = stack.enter_context(bed)
        except DraKitError as error:
            raise pytest.fail.Exception(escape_unprintable(f"{error} [{error.code}]"), pytrace=False) from None
        yield value


@pytest.fixture
def dra_hardware(pytestconfig: pytest.Config, dra_bed: TestBed) -> Iterator[FakeHardware]:
    """The fake hardware in the folder that the setting in ``dra_hardware`` names; undone when the test ends."""
    setting = pytestconfig.getini("dra_hardware")
    if pytestconfig.getoption("--dra-kubeconfig"):
        pytest.skip("the hardware of a real cluster cannot be simulated")
    if not setting:
        raise pytest.fail.Exception(
            "the fixture dra_hardware needs pytest's setting dra_hardware: the driver's setting that names the folder",
            pytrace=False,
        )
    hardware = dra_bed.hardware(setting)
    yield hardware
    hardware.restore()


@pytest.fixture
def dra(request: pytest.FixtureRequest, dra_bed: TestBed) -> Iterator[Harness]:
    """A cluster with the driver, and a namespace of this test."""
    from dra_kit.testing.bed import FailpointNotReached

    namespace, killed, process = (
        request.node.get_closest_marker(name) for name in ("dra_namespace", "dra_killed", "dra_process")
    )
    if (killed or process) and request.config.getoption("--dra-kubeconfig"):
        pytest.skip("the driver's processes are on nodes of a real cluster and cannot be killed from here")
    try:
        with dra_bed.harness(
            request.node.name,
            directory=request.path.parent,
            labels=namespace.kwargs.get("labels", {}) if namespace else {},
            process=bool(killed or process),
            killed_after=getattr(request, "param", ""),
            killed_driver=killed.kwargs.get("driver", "") if killed else "",
        ) as harness:
            yield harness
    except FailpointNotReached as error:
        if killed is None or killed.args:
            raise pytest.fail.Exception(str(error), pytrace=False) from None
        pytest.skip(str(error))
