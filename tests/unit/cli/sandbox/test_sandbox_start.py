"""``dra-kit sandbox`` speaks before it imports what a cluster is made of."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

DRIVER = """
    import dra_kit as dra


    class Oven(dra.DeviceProvider):
        def discover(self):
            yield [dra.Device(name="pizza-0")]


    class Waiter(dra.Preparer):
        def prepare(self, claim, device):
            return dra.Prepared()


    driver = dra.Driver("dra.pizza", provider=Oven(), preparer=Waiter())
"""
COMMAND = """
    import sys

    class NoCluster:
        def find_spec(self, name, path=None, target=None):
            if name in {"dra_kit.sandbox.run.session", "dra_kit.apiserver", "dra_kit.explain", "kopf"}:
                sys.exit(f"imports {name}")

    sys.meta_path.insert(0, NoCluster())
    from dra_kit.cli import main
    sys.argv = ["dra-kit", "sandbox", *sys.argv[1:]]
    main()
"""


@pytest.mark.parametrize(
    ("targets", "line"),
    [
        (["./pizzeria.py"], "  0.00 s a cluster in this process starts, with driver dra.pizza"),
        ([], "  0.00 s a cluster in this process starts, without a driver"),
    ],
)
@pytest.mark.processes
def test_the_first_line_comes_before_the_cluster_is_imported(tmp_path: Path, targets: list[str], line: str) -> None:
    (tmp_path / "pizzeria.py").write_text(textwrap.dedent(DRIVER))

    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(COMMAND), *targets],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip

    assert (ended.stdout.splitlines(), ended.returncode) == ([line], 1), ended.stderr
