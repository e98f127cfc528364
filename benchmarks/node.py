"""The node role against a real API server: calls, start, crash, memory, requests.

``python -m benchmarks.node [--rival BINARY]`` prints this part alone, ``--profile`` where the time of a prepare goes.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from dataclasses import replace
from pathlib import Path

from benchmarks import floors, rows, turns
from benchmarks.calls import Caller
from benchmarks.table import Row, by_module, show, show_shares
from benchmarks.turns import RIVAL_FSYNC, RIVAL_GET, Scale
from benchmarks.world import DRIVER, world
from dra_kit.client.api import Client
from dra_kit.client.credentials import load_credentials
from dra_kit.client.resources import RESOURCE_CLAIMS
from tests.cluster.find import NotFound, find
from tests.cluster.plane import PlaneError, start


def measured(rival: Path | None) -> list[Row]:
    """Return the figures; print the reason and return none without an API server.

    Args:
        rival: its binary, to be measured in turn with ours.
    """
    try:
        with start(replace(find(), node=False)) as plane:
            return asyncio.run(_measure(plane.kubeconfig, plane.directory, rival))
    except (NotFound, PlaneError) as error:
        print(f"SKIPPED, all that needs a real API server: {error}", file=sys.stderr)
        return []


async def _measure(kubeconfig: Path, directory: Path, rival: Path | None) -> list[Row]:
    credentials = await load_credentials(kubeconfig)
    table = [rows.import_time()]
    async with Client(credentials, user_agent="bench") as client, world(client, kubeconfig, directory) as made:
        claims = await made.make_claims(100)
        get = await floors.get_ms(credentials, claims[0])
        fsync = floors.fsync_ms(directory)
        scale = Scale(get=max(1.0, get / RIVAL_GET), fsync=max(1.0, fsync / RIVAL_FSYNC))
        claim = await client.get(RESOURCE_CLAIMS, claims[0].name, claims[0].namespace)
        table += rows.floors_rows(get, fsync, claim)
        table += await rows.start(made)
        table += await turns.prepares(made, claims, scale, rival)
        table += await rows.crash(made, claims)
        table += await rows.requests(made, credentials, claims[0])
        await made.delete_claims(claims)
    return table


async def _profile(kubeconfig: Path, directory: Path) -> None:
    """Print the profile of a node's event loop while claims are prepared one by one, without its start."""
    spent = []
    async with (
        Client(await load_credentials(kubeconfig), user_agent="bench") as client,
        world(client, kubeconfig, directory) as made,
    ):
        claims = await made.make_claims(100)
        for rounds in (0, 10):
            path = directory / f"{rounds}.profile"
            async with made.running(under=("benchmarks.profiled", path)) as (kubelet, _):
                caller = Caller(kubelet, DRIVER)
                for _ in range(rounds):
                    for claim in claims:
                        caller.prepare([claim])
                    caller.unprepare(claims)
                caller.close()
            spent.append(by_module(str(path)))
        await made.delete_claims(claims)
    start, busy = spent
    show_shares(busy - start)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.node", description=__doc__)
    parser.add_argument("--rival", type=Path, help="its binary: it is measured in turn with ours")
    parser.add_argument("--profile", action="store_true", help="show where the time of a prepare goes, by module")
    options = parser.parse_args()
    if options.profile:
        try:
            with start(replace(find(), node=False)) as plane:
                asyncio.run(_profile(plane.kubeconfig, plane.directory))
        except (NotFound, PlaneError) as error:
            print(f"no profile without a real API server: {error}", file=sys.stderr)
            return 1
        return 0
    table = measured(options.rival)
    show(table)
    return 0 if all(row.within for row in table) else 1


if __name__ == "__main__":
    sys.exit(main())
