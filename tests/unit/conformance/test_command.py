"""dra-kit conformance: arguments, exit codes, and a driver that others start."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest
from click.testing import CliRunner

from dra_kit.cli.app import cli
from dra_kit.conformance.profile import DriverProfile, ExpectedContainer, read_profile
from dra_kit.conformance.runner import ConformanceSettings, RunProgress, judge
from dra_kit.conformance.subject import SimulatedNode
from dra_kit.errors import ConfigurationError
from dra_kit.kubelet.cdi.spec import DeviceNode, Mount, SpecEdits
from tests.support import conformance_driver

REPOSITORY = Path(__file__).parents[3]


@pytest.fixture
def short_directory() -> Iterator[Path]:
    """The path of a socket has at most 107 bytes."""
    with TemporaryDirectory(prefix="dra-") as directory:
        yield Path(directory)


def shown(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli, ["conformance", *arguments])
    return result.exit_code, result.output


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "Name one driver: a TARGET, --command or --socket-dir."),
        (["--command", "true", "--socket-dir", "."], "Name one driver"),
        (["--command", "true", "--cdi-dir", "."], "--cdi-dir requires --socket-dir."),
        (["--command", "true", "--only", "Z1"], "--only Z1: Z1 is neither a group nor a check"),
        (
            ["--command", "true {nodes}"],
            'has the unknown placeholder {nodes}; did you mean "node"?',
        ),
        (["--cluster"], "Name the driver: --driver, or driver in the file of --profile."),
        (["--cluster", "--socket-dir", "."], "--cluster does not work with --socket-dir"),
        (["--cluster", "--command", "true"], "--command requires --here with --cluster"),
        (["--cluster", "--here", "--driver", "x"], "--here requires one driver to start: a TARGET or --command."),
        (["--cluster", "--here", "--command", "true"], "--here requires --node"),
        (["--cluster", "--driver", "x", "--only", "R1"], "--only R1: R1 is checked without --cluster only"),
        (["--command", "true", "--image", "x"], "--image requires --cluster."),
        (["--command", "true", "--driver", "x"], "--driver requires --cluster."),
        (["--command", "no-such-driver"], "program no-such-driver is not in the PATH"),
        (["--command", "A=b"], "names no program"),
        (["--command", "'x"], "is invalid: no closing quotation"),
    ],
)
def test_wrong_arguments_exit_with_2(arguments: list[str], text: str) -> None:
    code, output = shown(*arguments)
    assert code == 2
    assert text in output


def test_unknown_field_of_a_profile_is_named(tmp_path: Path) -> None:
    file = tmp_path / "profile.yaml"
    file.write_text("deviceclass: gpu\n", encoding="utf-8")
    with pytest.raises(
        ConfigurationError, match=r'invalid: deviceclass: unknown field; did you mean "deviceClass"\? see docs'
    ):
        read_profile(file)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("deviceClasses: null", "deviceClasses: must be a list"),
        ("deviceClasses: [null]", r"deviceClasses\[0\]: must be a path"),
        ("devices:\napiVersions:", "apiVersions: must be a list"),
    ],
)
def test_null_in_a_profile_is_refused_with_a_remedy(text: str, problem: str, tmp_path: Path) -> None:
    file = tmp_path / "profile.yaml"
    file.write_text(f"{text}\n", encoding="utf-8")
    with pytest.raises(ConfigurationError, match=rf"{problem}, not null; write a value, or remove it; see"):
        read_profile(file)


def test_rights_are_from_manifests_or_from_a_chart(tmp_path: Path) -> None:
    file = tmp_path / "profile.yaml"
    file.write_text("rbac: {manifests: [a.yaml], values: [b.yaml], serviceAccount: a/b}\n", encoding="utf-8")
    with pytest.raises(ConfigurationError, match="rbac has manifests, and a chart or values; keep one"):
        read_profile(file)


@pytest.mark.parametrize(("given", "names"), [("a.yaml", ["a.yaml"]), ("[a.yaml, b.yaml]", ["a.yaml", "b.yaml"])])
def test_classes_are_in_one_file_or_in_several(given: str, names: list[str], tmp_path: Path) -> None:
    file = tmp_path / "profile.yaml"
    file.write_text(f"deviceClasses: {given}\n", encoding="utf-8")
    assert read_profile(file).device_classes == [tmp_path / name for name in names]


def class_manifest(name: str) -> str:
    return f"apiVersion: resource.k8s.io/v1\nkind: DeviceClass\nmetadata: {{name: {name}}}\nspec: {{}}\n"


@pytest.mark.processes
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("field", "code", "text"),
    [
        ("deviceClass: small", 0, "ok   P2"),
        (
            "deviceClass: smal",
            2,
            'deviceClass smal of the profile does not exist; did you mean "small"? there are big,',
        ),
        ("sharedRequest: {deviceClassName: x}", 2, "sharedRequest.deviceClassName x of the profile does not exist;"),
    ],
)
def test_classes_of_all_files_can_be_named(field: str, code: int, text: str, tmp_path: Path) -> None:
    for name in ("big", "small"):
        (tmp_path / f"{name}.yaml").write_text(class_manifest(name), encoding="utf-8")
    profile = tmp_path / "profile.yaml"
    profile.write_text(f"deviceClasses: [big.yaml, small.yaml]\n{field}\n", encoding="utf-8")
    words = [f"PYTHONPATH={REPOSITORY}", sys.executable, "-m", conformance_driver.__name__, "none"]
    found, output = shown("--command", shlex.join(words), "--profile", str(profile), "--only", "P2")
    assert found == code, output
    assert text in output


def test_variables_may_name_the_folder_of_the_profile(tmp_path: Path) -> None:
    file = tmp_path / "profile.yaml"
    file.write_text("environment: {A: '{project}/a'}\nwithoutDevices: {B: '{project}/b'}\n", encoding="utf-8")
    profile = read_profile(file)
    assert (profile.environment, profile.without_devices) == ({"A": f"{tmp_path}/a"}, {"B": f"{tmp_path}/b"})


def test_expectations_have_patterns() -> None:
    edits = SpecEdits(
        env=("GPU_0=gpu-7", "MODE=fast"),
        mounts=(Mount(host_path="/a", container_path="/opt/gpu"),),
        device_nodes=(DeviceNode(path="/dev/gpu0"),),
    )
    met = ExpectedContainer(env={"GPU_*": "gpu-*"}, mounts=["/opt/*"], device_nodes=["/dev/gpu[0-9]"])
    assert list(met.missing_in(edits)) == []
    unmet = ExpectedContainer(env={"MODE": "slow", "NONE": "*"}, mounts=["/x"], device_nodes=["/y"])
    assert list(unmet.missing_in(edits)) == [
        "variable MODE is 'fast', expected 'slow'",
        "variable NONE is missing",
        "mount /x is missing",
        "device node /y is missing",
    ]


@pytest.mark.processes
@pytest.mark.timeout(600)
def test_driver_that_exits_at_once_fails_r1_and_nothing_else_is_judged(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    code, output = shown("--command", "sh -c 'echo no hardware; exit 3'", "--only", "R1,P2", "--json", str(file))
    assert code == 1
    assert "no DRA plugin registered before the driver's process exited: no socket in" in output
    assert "the driver's process exited with 3" in output
    assert "log: no hardware" in output
    found = json.loads(file.read_text(encoding="utf-8"))
    assert [(check["id"], check["status"]) for check in found["checks"]] == [("R1", "failed"), ("P2", "not judged")]


class Waiting(RunProgress):
    def __init__(self) -> None:
        self.began = asyncio.Event()

    def waiting(self, places: SimulatedNode, seconds: float) -> None:
        assert seconds == DriverProfile().start_within
        assert places.registry.is_dir()
        self.began.set()


def unstarted(root: Path) -> ConformanceSettings:
    return ConformanceSettings(subject="", command=None, profile=DriverProfile(), socket_dir=root)


async def test_interrupted_wait_for_a_driver_leaves_no_folder(short_directory: Path) -> None:
    (short_directory / "kubelet" / "plugins").mkdir(parents=True)
    progress = Waiting()
    run = asyncio.create_task(judge(unstarted(short_directory / "kubelet"), progress))
    await asyncio.wait_for(progress.began.wait(), 60)
    run.cancel()
    with suppress(asyncio.CancelledError):
        await run

    assert [str(path.relative_to(short_directory)) for path in short_directory.rglob("*")] == [
        "kubelet",
        "kubelet/plugins",
    ]


async def test_folder_of_sockets_that_cannot_be_created_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="file cannot be created: File exists; use another directory"):
        await judge(unstarted(tmp_path / "file" / "kubelet"))


async def test_folder_in_which_no_driver_starts_is_reported_with_the_limit(short_directory: Path) -> None:
    settings = msgspec.structs.replace(unstarted(short_directory), profile=DriverProfile(driver="a", start_within=0.01))
    with pytest.raises(ConfigurationError) as caught:
        await judge(settings)
    place = short_directory
    assert str(caught.value) == (
        f"--socket-dir {place}: no driver has created a socket in {place}/plugins_registry within 0.01 s; start it "
        f"with KUBECONFIG={place}/kubeconfig while this command waits, or set startWithin in the file of --profile to "
        "more seconds"
    )


@pytest.mark.processes
@pytest.mark.timeout(300)
def test_interrupted_run_writes_the_reports_of_what_was_judged(tmp_path: Path) -> None:
    words = shlex.join([sys.executable, "-m", conformance_driver.__name__, "none"])
    reports = [f"--{kind}={tmp_path / kind}" for kind in ("json", "junit", "html")]
    python = ["env", "--default-signal=INT", sys.executable, "-u"]  # children of a shell's background job ignore it
    command = [*python, "-m", "dra_kit", "conformance", "--command", words, "--only", "R", *reports]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as suite:
        assert suite.stdout is not None
        first = suite.stdout.readline()
        suite.send_signal(signal.SIGINT)
        output, errors = suite.communicate(timeout=200)
    assert first.startswith("ok   R1 ")
    assert (suite.returncode, errors.strip()) == (130, "interrupted")
    assert "interrupted, so that not all checks are judged (" in output
    document = json.loads((tmp_path / "json").read_text(encoding="utf-8"))
    assert document["checks"][0]["id"] == "R1"
    assert len(document["checks"]) < 10
    assert (document["driver"], document["interrupted"], document["conforms"]) == (
        conformance_driver.DRIVER, True, False
    )  # fmt: skip
    assert 'errors="1"' in (tmp_path / "junit").read_text(encoding="utf-8")
    assert "interrupted" in (tmp_path / "html").read_text(encoding="utf-8")


@pytest.mark.processes
@pytest.mark.timeout(600)
def test_driver_that_others_start_is_judged_by_its_sockets(short_directory: Path, tmp_path: Path) -> None:
    root, report = short_directory / "kubelet", tmp_path / "report.json"
    command = [sys.executable, "-m", "dra_kit", "conformance", "--socket-dir", str(root), "--json", str(report)]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    with subprocess.Popen([*command, "--only", "R,P2,P4,U2"], env=environment, stdout=subprocess.PIPE) as suite:
        end = time.monotonic() + 180
        while not (root / "kubeconfig").exists():
            assert time.monotonic() < end
            time.sleep(0.05)
        variables = {
            "KUBECONFIG": str(root / "kubeconfig"),
            "NODE_NAME": "node-1",
            "KUBELET_PLUGINS_DIRECTORY_PATH": str(root / "plugins"),
            "KUBELET_REGISTRAR_DIRECTORY_PATH": str(root / "plugins_registry"),
            "CDI_ROOT": str(root / "cdi"),
        }
        words = [sys.executable, "-m", conformance_driver.__name__, "none"]
        with subprocess.Popen(words, env=environment | variables) as driver:
            output, _ = suite.communicate(timeout=200)
            driver.terminate()
    assert suite.returncode == 0, output.decode()
    checks = {check["id"]: check for check in json.loads(report.read_text(encoding="utf-8"))["checks"]}
    assert checks["P2"]["status"] == checks["U2"]["status"] == "passed"
    assert checks["P4"]["evidence"] == ["dra-kit did not start the driver; use a TARGET or --command"]
