"""Looks for worlds in which the sandbox and a real control plane differ, and records them.

``python -m tests.cluster.worlds --kubeconfig FILE --kubectl FILE [--worlds N] [--seed N] [--record FILE]``: each world
that differs is printed, and added to the file as a scenario with what the real control plane made of it. ``--only N …``
plays these worlds of a seed alone, and adds them whether they differ or not. In worlds of ``--bursts`` pods come at
once and the scheduler chooses their nodes; only the outcome is compared, and nothing is recorded. ``--again FILE``
plays recorded scenarios instead, and ``--record`` then adds each of them whole: what another release makes of them.
A phase that waits for nothing but time lasts as long as it says (``quiet 12``: 12 seconds); where the scheduler tries a
pod again, let it say more than the ten seconds between two attempts.
``--verdicts`` compares ``explain`` with the scheduler on worlds of another kind, many at the same time; ``--alpha``:
the cluster has all alpha features; ``--run`` is a word that no earlier run on the cluster had.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Final

from dra_kit.client.api import discover_release
from dra_kit.kubernetes.release import Release
from tests.cluster.worlds.difference import describe
from tests.cluster.worlds.play import play, proxied, real_plane, same
from tests.cluster.worlds.search import generated
from tests.cluster.worlds.verdicts import VerdictComparison
from tests.golden.files import read
from tests.golden.kind import Line


def main() -> int:
    """Runs the command; 1 when worlds differ."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.worlds", description=__doc__)
    parser.add_argument("--kubeconfig", type=Path, required=True)
    parser.add_argument("--kubectl", type=Path, required=True)
    parser.add_argument("--worlds", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, nargs="+", default=[], metavar="N", help="numbers of worlds")
    parser.add_argument("--record", type=Path, help="adds worlds that differ to this file, as recorded scenarios")
    parser.add_argument("--verdicts", action="store_true", help="compare explain with the scheduler, without a sandbox")
    parser.add_argument("--alpha", action="store_true", help="the cluster has all alpha features")
    parser.add_argument("--run", default="w", help="letters that begin the names of all objects of --verdicts")
    parser.add_argument("--again", type=Path, metavar="FILE", help="play the scenarios of a golden file")
    parser.add_argument("--bursts", action="store_true", help="pods come at once, to nodes of the scheduler's choice")
    options = parser.parse_args()
    if options.bursts and options.record:
        parser.error("what becomes of bursts is left to chance: --record has no use for it")
    if options.verdicts:
        return asyncio.run(_compare(options))
    return asyncio.run(_repeat(options) if options.again else _search(options))


async def _compare(options: argparse.Namespace) -> int:
    """Compare what ``explain`` and the scheduler say of pods."""
    async with proxied(options.kubectl, options.kubeconfig) as (credentials, client):
        version = await discover_release(client)
        release = Release.alpha(version) if options.alpha else Release.of(version)
        comparison = VerdictComparison(credentials, client, release, options.run)
        numbers = options.only or range(options.worlds)
        disagreements = await comparison.compare(options.seed, numbers)
    for disagreement in disagreements:
        print(disagreement)
    for message in comparison.refused:
        print(f"refused: {message}")
    print(
        f"Kubernetes {version}, seed {options.seed}: {len(numbers)} worlds, {len(comparison.refused)} objects refused, "
        f"{comparison.judged} verdicts, {comparison.placed} pods placed, {comparison.left_out} left out, "
        f"{len(disagreements)} disagreements"
    )
    return 1 if disagreements else 0


async def _repeat(options: argparse.Namespace) -> int:
    """Play the scenarios of a file that have the default gates."""
    different = 0
    lines = [line for line in read(options.again) if line["gates"] == "default"]
    async with real_plane(options.kubectl, options.kubeconfig) as plane:
        for line in lines:
            asked = [{key: item for key, item in phase.items() if key in _ASKED} for phase in line["phases"]]
            world = {**line, "phases": asked}
            try:
                real, ours = await play(plane, world, whole=True)
            except ExceptionGroup as error:  # of the sandbox, or of the real control plane
                different += 1
                print(f"{line['id']}: not played: {error.exceptions}", flush=True)
                continue
            if not same(real, ours):
                different += 1
                print(f"{line['id']}:\n{describe(real, ours)}", flush=True)
            if options.record:
                _add(options.record, {**world, "phases": real})
    print(f"{different} of {len(lines)} scenarios differ")
    return 1 if different else 0


_ASKED: Final = frozenset({"do", "until", "compare", "at_once"})
"""What a phase asks, and not what came of it."""


def _add(path: Path, line: Line) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line, separators=(",", ":")) + "\n")


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
                _add(options.record, {"id": f"W/{options.seed}/{number}", "about": "", **world, "phases": real})
            print(f"world {number} of seed {options.seed} played", file=sys.stderr, flush=True)
    print(f"{different} of {len(numbers)} worlds differ; {time.monotonic() - begin:.0f} s")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
