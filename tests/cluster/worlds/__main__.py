"""Looks for worlds in which the sandbox and a real control plane differ, and records them.

``python -m tests.cluster.worlds --kubeconfig FILE --kubectl FILE [--worlds N] [--seed N] [--record FILE]``: each world
that differs is printed, and added to the file as a scenario with what the real control plane made of it. ``--only N …``
plays these worlds of a seed alone, and adds them whether they differ or not. In worlds of ``--bursts`` pods come at
once and the scheduler chooses their nodes; only the outcome is compared, and nothing is recorded.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from pathlib import Path

from tests.cluster.worlds.difference import describe
from tests.cluster.worlds.play import play, real_plane, same
from tests.cluster.worlds.search import generated


def main() -> int:
    """Runs the command; 1 when worlds differ."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.worlds", description=__doc__)
    parser.add_argument("--kubeconfig", type=Path, required=True)
    parser.add_argument("--kubectl", type=Path, required=True)
    parser.add_argument("--worlds", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, nargs="+", default=[], metavar="N", help="numbers of worlds")
    parser.add_argument("--record", type=Path, help="adds worlds that differ to this file, as recorded scenarios")
    parser.add_argument("--bursts", action="store_true", help="pods come at once, to nodes of the scheduler's choice")
    options = parser.parse_args()
    if options.bursts and options.record:
        parser.error("what becomes of bursts is left to chance: --record has no use for it")
    return asyncio.run(_search(options))


async def _search(options: argparse.Namespace) -> int:
    different = 0
    begin = time.monotonic()
    async with real_plane(options.kubectl, options.kubeconfig) as plane:
        numbers = options.only or range(options.worlds)
        for number in numbers:
            world = generated(options.seed, number, burst=options.bursts)
            real, ours = await play(plane, world)
            if differs := not same(real, ours):
                different += 1
                print(f"seed {options.seed}, world {number}:\n{describe(real, ours)}", flush=True)
            if options.record and (differs or options.only):
                line = {"id": f"W/{options.seed}/{number}", "about": "", **world, "phases": real}
                with options.record.open("a") as file:
                    file.write(json.dumps(line, separators=(",", ":")) + "\n")
            print(f"world {number} of seed {options.seed} played", file=sys.stderr, flush=True)
    print(f"{different} of {len(numbers)} worlds differ; {time.monotonic() - begin:.0f} s")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
