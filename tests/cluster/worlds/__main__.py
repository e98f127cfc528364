"""Looks for worlds in which the sandbox and a real control plane differ, and records them.

``python -m tests.cluster.worlds --kubeconfig FILE --kubectl FILE [--worlds N] [--seed N] [--record FILE]``: each world
that differs is printed, and added to the file as a scenario with what the real control plane made of it. With
``--again`` the scenarios of the file are played once more instead.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from pathlib import Path

from tests.cluster.worlds.difference import describe
from tests.cluster.worlds.play import RealPlane, play_on_sandbox, real_plane, same
from tests.cluster.worlds.search import generated
from tests.golden.kind import Line


def main() -> int:
    """Runs the command; 1 when worlds differ."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.worlds", description=__doc__)
    parser.add_argument("--kubeconfig", type=Path, required=True)
    parser.add_argument("--kubectl", type=Path, required=True)
    parser.add_argument("--worlds", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--record", type=Path, help="adds worlds that differ to this file, as recorded scenarios")
    options = parser.parse_args()
    return asyncio.run(_search(options))


async def _search(options: argparse.Namespace) -> int:
    different = 0
    begin = time.monotonic()
    async with real_plane(options.kubectl, options.kubeconfig) as plane:
        for number, world in enumerate(generated(options.worlds, options.seed)):
            real = await _difference(plane, world, f"seed {options.seed}, world {number}")
            if real is not None:
                different += 1
                if options.record:
                    line = {"id": f"W/{options.seed}/{number}", "about": "", **world, "phases": real}
                    with options.record.open("a") as file:
                        file.write(json.dumps(line, separators=(",", ":")) + "\n")
    print(f"{different} of {options.worlds} worlds differ; {time.monotonic() - begin:.0f} s")
    return 1 if different else 0


async def _difference(plane: RealPlane, world: Line, name: str) -> list[Line] | None:
    """The phases on the real control plane if they differ from ours."""
    ours = await play_on_sandbox(world)
    real = await plane.play(world, ours)
    if all(same(*pair) for pair in zip(real, ours, strict=False)):
        return None
    print(f"{name}:\n{describe(real, ours)}", flush=True)
    return real


if __name__ == "__main__":
    sys.exit(main())
