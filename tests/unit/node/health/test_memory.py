"""The file in which health outlives a process, and the driver's other process beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from dra_kit.node.health_ledger import StoredHealth
from dra_kit.node.health_monitor import HealthFile
from dra_kit.node.state.database_files import sync


def of(device: str) -> list[StoredHealth]:
    return [StoredHealth(("node-1", device), {"serial": "1"}, ())]


def test_two_processes_that_write_at_once_do_not_share_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In containers both have the same process ID."""
    path = tmp_path / "health.json"
    here, there = HealthFile(path), HealthFile(path)

    def while_the_other_writes(written: Path) -> None:
        monkeypatch.setattr("dra_kit.node.health_monitor.sync", sync)
        there.write(of("gpu-1"))
        sync(written)

    monkeypatch.setattr("dra_kit.node.health_monitor.sync", while_the_other_writes)
    here.write(of("gpu-0"))
    assert HealthFile(path).read() == of("gpu-0")
    assert list(tmp_path.iterdir()) == [path]
