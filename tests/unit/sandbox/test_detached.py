"""Sandboxes in the background."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import pytest

DRIVER = """
    import threading

    import dra_kit as dra
    from dra_kit.sandbox import cluster

    # it does not end by itself before it is interrupted
    cluster.PUBLISH_SECONDS = 600.0


    class Oven(dra.DeviceProvider):
        def discover(self):
            threading.Event().wait()
            yield []


    class Waiter(dra.Preparer):
        def prepare(self, claim, device):
            return dra.Prepared()


    driver = dra.Driver("dra.pizza", provider=Oven(), preparer=Waiter())
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_nothing_remains_of_one_whose_start_is_interrupted(number: signal.Signals) -> None:
    with tempfile.TemporaryDirectory(prefix="k-", dir="/tmp") as directory:
        place = Path(directory)
        (place / "pizzeria.py").write_text(textwrap.dedent(DRIVER))
        # a shell starts what is in its background with SIGINT ignored
        heeding = ["/usr/bin/env", "--default-signal=INT"]
        command = [*heeding, str(Path(sys.executable).with_name("dra-kit")), "sandbox", "./pizzeria.py", "--detach"]
        environment = {**os.environ, "TMPDIR": directory, "XDG_RUNTIME_DIR": directory, "PYTHONDONTWRITEBYTECODE": "1"}
        with subprocess.Popen(command, cwd=place, env=environment) as process:
            wait_for(place, "dra-*/node-1/plugins_registry/*")
            process.send_signal(number)

        assert process.returncode == 130
        assert [path.name for path in place.iterdir() if not path.name.startswith("dra-kit-sandbox-")] == [
            "pizzeria.py"
        ]
        assert list(place.glob("dra-kit-sandbox-*/*")) == []


def wait_for(place: Path, pattern: str) -> None:
    end = time.monotonic() + 60
    while not list(place.glob(pattern)):
        assert time.monotonic() < end
        time.sleep(0.05)
