"""``dra-kit node`` on the command line: what it prints, and how it refuses."""

from __future__ import annotations

import datetime as dt
import json
import socket
from pathlib import Path

import pytest
from click.testing import CliRunner

from dra_kit.cli.app import cli
from dra_kit.kubernetes.resource.objects import ClaimReference
from dra_kit.node.health_ledger import HealthProblem, StoredHealth
from dra_kit.node.health_monitor import HealthFile
from dra_kit.node.settings import NodeSettings
from dra_kit.node.state.records import ClaimRecord
from dra_kit.node.state.store import StateStore
from tests.unit.cli.roles.command import Printed, dra_kit, dra_kit_process


def refusal(*arguments: object, code: int = 2) -> str:
    """The one line on stderr of a command that is refused."""
    return error_line(dra_kit(*arguments, code=code))


def error_line(result: Printed) -> str:
    assert result.stdout == ""
    [line] = result.stderr.splitlines()
    assert line.startswith("error: ")
    return line


@pytest.mark.processes
def test_a_target_that_does_not_exist() -> None:
    result = dra_kit_process("node", "./nowhere.py", "--node-name", "node-1", code=2)
    assert "./nowhere.py" in error_line(result)


def test_a_target_that_does_not_import_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text("raise ValueError('first line\\nsecond line')\n")
    assert "ValueError: first line second line" in refusal("node", path, "--node-name", "node-1")


def test_the_node_name_is_needed(target: Path) -> None:
    result = dra_kit("node", target, code=2)
    assert "Missing option '--node-name' (DRA_NODE_NAME)" in result.stderr


def test_a_file_of_globs_in_place_of_a_target(target: Path, tmp_path: Path) -> None:
    file = tmp_path / "globs"  # as in a ConfigMap, without a suffix
    file.write_text("driver: serial.example.com\ndevices:\n- paths: /dev/ttyUSB*\n")
    assert "Missing option '--node-name'" in dra_kit("node", "--globs", file, code=2).stderr
    assert "--root" in dra_kit("node", f"--globs={file}", "--help", code=0).stdout
    assert "each names a driver" in dra_kit("node", target, "--globs", file, code=2).stderr
    assert "or option '--globs': the driver to run" in dra_kit("node", code=2).stderr
    assert "Option '--globs' requires an argument" in dra_kit("node", "--globs", code=2).stderr
    file.write_text("driver: serial.example.com\n")
    assert refusal("node", "--globs", file) == f"error: {file}:1: devices: is required [invalid-globs]"


@pytest.mark.parametrize("command", ["node", "sandbox", "template"])
def test_option_of_a_driver_without_target(command: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, [command, "--root", str(tmp_path)])
    assert result.exit_code == 2
    text = " ".join(result.output.split())
    assert f"Missing argument 'TARGET': {tmp_path} is not a driver, but probably the value of --root" in text
    assert f"write TARGET --root {tmp_path}" in text


def test_a_kubeconfig_that_does_not_exist(target: Path, tmp_path: Path) -> None:
    told = refusal("node", target, "--node-name", "node-1", "--kubeconfig", tmp_path / "nowhere")
    assert f"{tmp_path / 'nowhere'}" in told


@pytest.fixture
def kubeconfig(tmp_path: Path) -> Path:
    path = tmp_path / "kubeconfig"
    path.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "test",
                "clusters": [{"name": "test", "cluster": {"server": "http://127.0.0.1:1"}}],
                "users": [{"name": "test", "user": {}}],
                "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
            }
        )
    )
    return path


def test_a_directory_too_long_for_sockets(target: Path, tmp_path: Path, kubeconfig: Path) -> None:
    told = refusal(
        "node", target, "--node-name", "node-1", "--kubeconfig", kubeconfig, "--kubelet-dir", tmp_path / ("d" * 100)
    )
    assert "give a shorter --kubelet-dir" in told
    assert told.endswith("[socket-path-too-long]")


def test_a_port_for_the_probes_that_is_taken(target: Path, tmp_path: Path, kubeconfig: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        told = refusal(
            "node", target, "--node-name", "node-1", "--kubeconfig", kubeconfig, "--kubelet-dir", "/tmp/k",
            "--state-dir", tmp_path / "state", "--cdi-dir", tmp_path / "cdi", "--probe-address", address,
        )  # fmt: skip
    assert told.startswith(f"error: --probe-address cannot listen on {address} (Address already in use)")


def test_a_version_of_the_kubelet_service_that_does_not_exist(target: Path, tmp_path: Path, kubeconfig: Path) -> None:
    told = refusal(
        "node", target, "--node-name", "node-1", "--kubeconfig", kubeconfig, "--kubelet-dir", "/tmp/k",
        "--state-dir", tmp_path / "state", "--dra-versions", "v1,v7",
    )  # fmt: skip
    assert "DRA service versions ['v1', 'v7']: give at least one of v1, v1beta1" in told


def test_a_setting_of_the_author_that_is_wrong(target: Path) -> None:
    told = refusal("node", target, "--node-name", "node-1", "--slices", "many")
    assert "--slices (DRIVER_SLICES)" in told


def test_corrupt_state_is_neither_dumped_nor_changed(target: Path, tmp_path: Path) -> None:
    database = tmp_path / "state.sqlite"
    database.write_text("no database " * 1000)
    told = refusal("node", target, "--dump-state", "--state-dir", tmp_path, code=1)
    assert f"state {database} is corrupt; when the node starts, it moves it away" in told
    assert told.endswith("[store]")
    assert list(tmp_path.glob("state*")) == [database]


@pytest.mark.processes
def test_corrupt_state_is_an_exit_code_of_the_process(target: Path, tmp_path: Path) -> None:
    (tmp_path / "state.sqlite").write_text("no database " * 1000)
    line = error_line(dra_kit_process("node", target, "--dump-state", "--state-dir", tmp_path, code=1))
    assert line.endswith("[store]")


def test_no_state_to_dump(target: Path, tmp_path: Path) -> None:
    told = refusal("node", target, "--dump-state", "--state-dir", tmp_path / "nowhere")
    assert f"state {tmp_path / 'nowhere' / 'state.sqlite'} does not exist; correct --state-dir or --kubelet-dir" in told


async def test_dump_state_shows_claims_and_effects(target: Path, tmp_path: Path) -> None:
    store = StateStore(NodeSettings(node_name="", state_dir=tmp_path).database("dra.pizza"))
    lunch = ClaimReference("default", "lunch", "uid-1")
    record = ClaimRecord(namespace="default", name="lunch", uid="uid-1", allocation="a", boot_id="boot-1")
    await store.put_claim(record, epoch=store.epoch(), then=lambda written: None)
    effect = await store.intend("heat", '{"oven":"a"}', ["oven/a"], claim=lunch, boot_id="boot-1")
    await store.revert_failed(effect.number, "valve stuck")
    dumped = json.loads(dra_kit("node", target, "--dump-state", "--state-dir", tmp_path, code=0).stdout)
    store.close()
    assert [(claim["name"], claim["phase"]) for claim in dumped["claims"]] == [("lunch", "prepared")]
    [shown] = dumped["effects"]
    assert (shown["effect"], shown["phase"], shown["error"]) == ("heat", "intent", "valve stuck")
    assert [claim["name"] for claim in shown["claims"]] == ["lunch"]
    assert dumped["epochs"] == {}
    assert dumped["health"] == []


def test_dump_state_shows_what_is_wrong_with_devices(target: Path, tmp_path: Path) -> None:
    StateStore(NodeSettings(node_name="", state_dir=tmp_path).database("dra.pizza")).close()
    since = dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC)
    burnt = HealthProblem("burnt", "black", None, since)
    HealthFile(tmp_path / "health.json").write([StoredHealth(("node-1", "pizza-0"), {"name": "a"}, (burnt,))])
    dumped = json.loads(dra_kit("node", target, "--dump-state", "--state-dir", tmp_path, code=0).stdout)
    problem = {"reason": "burnt", "message": "black", "value": None, "since": since.isoformat()}
    assert dumped["health"] == [{"pool": "node-1", "device": "pizza-0", "problems": [problem]}]


def test_corrupt_health_is_reported_and_not_changed(target: Path, tmp_path: Path) -> None:
    StateStore(NodeSettings(node_name="", state_dir=tmp_path).database("dra.pizza")).close()
    file = tmp_path / "health.json"
    file.write_text('{"form": 1, "devices": "[]", "checksum": ""}')
    dumped = json.loads(dra_kit("node", target, "--dump-state", "--state-dir", tmp_path, code=0).stdout)
    assert dumped["health"] == []
    assert f"health of devices in {file} cannot be read" in dumped["corrupt"][0]
    assert list(tmp_path.glob("health*")) == [file]


def test_help_shows_the_authors_settings(target: Path) -> None:
    shown = dra_kit("node", target, "--help", code=0).stdout
    assert "--slices" in shown
    assert "DRIVER_SLICES" in shown


def test_an_unknown_command() -> None:
    assert "No such command 'nodes'; did you mean \"node\"?" in dra_kit("nodes", code=2).stderr
    assert "No such command 'pizza'; the commands are advise, api, chart, " in dra_kit("pizza", code=2).stderr
