"""The node role against a real API server: calls, start, crash, memory, requests.

``python -m benchmarks.node [--rival BINARY]`` prints this part alone.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from dataclasses import replace
from pathlib import Path

from benchmarks import floors, rows
from benchmarks.rows import RIVAL_FSYNC, RIVAL_GET, Scale
from benchmarks.table import Row, show
from benchmarks.world import world
from dra_kit.kube.client import Client
from dra_kit.kube.credentials import load_credentials
from dra_kit.kube.resources import RESOURCE_CLAIMS
from tests.cluster.find import NotFound, find
from tests.cluster.plane import PlaneError, start


def measured(rival: Path | None) -> list[Row]:
    """The figures; none, and a word why, where there is no API server.

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
        table += await rows.prepares(made, claims, scale, rival)
        table += await rows.crash(made, claims)
        table += await rows.requests(made, credentials, claims[0])
        await made.delete_claims(claims)
    return table


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.node", description=__doc__)
    parser.add_argument("--rival", type=Path, help="its binary: it is measured in turn with ours")
    table = measured(parser.parse_args().rival)
    show(table)
    return 0 if all(row.within for row in table) else 1


if __name__ == "__main__":
    sys.exit(main())
