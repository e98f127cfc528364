"""As PID 1 of its container, the driver reaps orphans and terminates programs when it exits."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.api import eventually
from tests.support.processes import children_of
from tests.unit.node.children.test_children import Shell, applied, driver

UNSHARE = ["unshare", *([] if os.getuid() == 0 else ["--map-root-user"]), "--pid", "--fork", "--mount-proc"]


async def as_pid_1(directory: Path) -> None:
    """A program leaves a process behind, which goes on for a while."""
    gate = directory / "gate"
    async with driver(directory) as children:
        daemon = Shell(script=f"(while [ ! -e {gate} ]; do sleep 0.05; done &); exec sleep 1000").with_runner(children)
        process = await applied(daemon, None)
        await eventually(lambda: len(children_of(1)) == 2)
        assert process.pid in children_of(1)
        gate.touch()
        await eventually(lambda: list(children_of(1)) == [process.pid])
        print("inherited and reaped")
    assert children_of(1) == {}
    print("ended with the driver")


def test_pid_1_reaps_orphans_and_terminates_programs_on_exit(tmp_path: Path) -> None:
    if subprocess.run([*UNSHARE, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no PID namespaces here: needs root, or user namespaces")
    command = [*UNSHARE, sys.executable, "-m", __name__, str(tmp_path)]
    root = Path(__file__).parents[4]
    ran = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=240, check=False)
    assert ran.stdout.splitlines() == ["inherited and reaped", "ended with the driver"], ran.stderr


if __name__ == "__main__":
    asyncio.run(as_pid_1(Path(sys.argv[1])))
