"""Sandboxes in the background."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest

from dra_kit.errors import SandboxError
from dra_kit.sandbox.run.detached import STATE_VARIABLE, report_ready, running_in_background, state_directory
from tests.unit.sandbox.cluster.workload.test_runtime import wait_for

DRIVER = """
    import threading

    import dra_kit as dra
    from dra_kit.sandbox.drivers import running

    # it does not end by itself before it is interrupted
    running.PUBLISH_SECONDS = 600.0


    class Oven(dra.DeviceProvider):
        def discover(self):
            threading.Event().wait()
            yield []


    class Waiter(dra.Preparer):
        def prepare(self, claim, device):
            return dra.Prepared()


    driver = dra.Driver("dra.pizza", provider=Oven(), preparer=Waiter())
"""


@pytest.mark.processes
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_start_leaves_nothing_behind(number: signal.Signals) -> None:
    with tempfile.TemporaryDirectory(prefix="k-", dir="/tmp") as directory:
        place = Path(directory)
        (place / "pizzeria.py").write_text(textwrap.dedent(DRIVER))
        # a shell starts what is in its background with SIGINT ignored
        heeding = ["/usr/bin/env", "--default-signal=INT"]
        command = [*heeding, str(Path(sys.executable).with_name("dra-kit")), "sandbox", "./pizzeria.py", "--detach"]
        environment = {**os.environ, "TMPDIR": directory, "XDG_RUNTIME_DIR": directory, "PYTHONDONTWRITEBYTECODE": "1"}
        with subprocess.Popen(command, cwd=place, env=environment) as process:
            wait_for(lambda: list(place.glob("dra-*/1/plugins_registry/*")))
            process.send_signal(number)

        assert process.returncode == 130
        assert [path.name for path in place.iterdir() if not path.name.startswith("dra-kit-sandbox-")] == [
            "pizzeria.py"
        ]
        assert list(place.glob("dra-kit-sandbox-*/*")) == []


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where sandboxes leave word of themselves."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return state_directory()


def announced(place: Path, monkeypatch: pytest.MonkeyPatch, name: str = "1") -> Path:
    """What a sandbox in the background leaves that is this very process."""
    state = place / f"{name}.json"
    with monkeypatch.context() as patch:
        patch.setenv(STATE_VARIABLE, str(state))
        report_ready(["dra.pizza"], Path("kubeconfig"))
    return state


def test_record_of_a_detached_sandbox_is_private(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = announced(place, monkeypatch)

    assert place.stat().st_mode & 0o777 == 0o700
    assert state.stat().st_mode & 0o777 == 0o600
    [sandbox] = running_in_background()
    assert (sandbox.pid, sandbox.drivers, sandbox.log) == (os.getpid(), ("dra.pizza",), state.with_suffix(".log"))


def test_record_and_log_of_a_stopped_sandbox_are_removed(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = announced(place, monkeypatch)
    state.write_text(state.read_text().replace('"began": "', '"began": "1'))
    state.with_suffix(".log").touch()

    assert running_in_background() == []
    assert list(place.iterdir()) == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[1]",
        "notes",
        "[" * 50_000,
        '{"pid": 1, "began": "2", "drivers": ["a"], "kubeconfig": "b"}',
        '{"pid": 7, "began": "2", "drivers": "a", "kubeconfig": "b"}',
        '{"pid": true, "began": "2", "drivers": ["a"], "kubeconfig": "b"}',
        '{"pid": "7", "began": "2", "drivers": ["a"], "kubeconfig": "b"}',
        '{"pid": 7, "began": 2, "drivers": ["a"], "kubeconfig": "b"}',
        '{"pid": 7, "began": "", "drivers": ["a"], "kubeconfig": "b"}',
    ],
)
def test_files_that_no_sandbox_wrote_are_kept(place: Path, text: str) -> None:
    (place / "notes.json").write_text(text)
    (place / "notes.json").chmod(0o600)
    (place / "notes.log").touch()

    assert running_in_background() == []
    assert (place / "notes.json").read_text() == text
    assert (place / "notes.log").exists()


def test_paths_in_a_record_are_not_removed(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    victim = tmp_path / "thesis"
    victim.touch()
    state = announced(place, monkeypatch)
    told = json.loads(state.read_text()) | {"began": "1", "log": str(victim), "state": str(victim)}
    state.write_text(json.dumps(told))

    assert running_in_background() == []
    assert victim.exists()


@pytest.mark.parametrize("mode", [0o644, 0o660, 0o604])
def test_record_that_others_can_access_is_ignored(place: Path, monkeypatch: pytest.MonkeyPatch, mode: int) -> None:
    state = announced(place, monkeypatch)
    state.chmod(mode)

    assert running_in_background() == []
    assert state.exists()


def test_record_behind_a_link_is_ignored(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = announced(place, monkeypatch)
    moved = tmp_path / "elsewhere.json"
    state.rename(moved)
    state.symlink_to(moved)

    assert running_in_background() == []
    assert moved.exists()
    assert state.is_symlink()


@pytest.mark.parametrize("plant", ["link", "open", "file"])
def test_directory_of_another_user_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plant: str) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    directory = tmp_path / f"dra-kit-sandbox-{os.getuid()}"
    (tmp_path / "mine").mkdir(0o700)
    (tmp_path / "mine" / "notes.json").touch()
    if plant == "link":
        directory.symlink_to("mine")
    elif plant == "open":
        directory.mkdir()
        directory.chmod(0o777)
    else:
        directory.touch()

    with pytest.raises(SandboxError, match="set XDG_RUNTIME_DIR to a directory of your own"):
        running_in_background()

    assert (tmp_path / "mine" / "notes.json").exists()


def test_missing_directory_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "nowhere"))

    with pytest.raises(SandboxError, match="cannot be made: No such file or directory"):
        running_in_background()
