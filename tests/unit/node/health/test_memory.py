"""The file that stores health for the next process, written by two processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from dra_kit.node.health_ledger import StoredHealth
from dra_kit.node.health_monitor import HealthFile
from dra_kit.node.state.database_files import sync


def of(device: str) -> list[StoredHealth]:
    return [StoredHealth(("node-1", device), {"serial": "1"}, ())]


def test_concurrent_writers_use_separate_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In containers both have the same process ID."""
    path = tmp_path / "health.json"
    here, there = HealthFile(path), HealthFile(path)

    def sync_after_other_write(written: Path) -> None:
        monkeypatch.setattr("dra_kit.node.health_monitor.sync", sync)
        there.write(of("gpu-1"))
        sync(written)

    monkeypatch.setattr("dra_kit.node.health_monitor.sync", sync_after_other_write)
    here.write(of("gpu-0"))
    assert HealthFile(path).read() == of("gpu-0")
    assert list(tmp_path.iterdir()) == [path]
