"""``python -m benchmarks [--json FILE]``: measure everything, print the table, exit 1 when a budget is exceeded."""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from benchmarks import floors, rows
from benchmarks.rows import RIVAL_FSYNC, RIVAL_GET, Scale
from benchmarks.table import Row, read, show, write
from benchmarks.world import world
from dra_kit.kube.client import Client
from dra_kit.kube.credentials import load_credentials
from tests.cluster.find import NotFound, find
from tests.cluster.plane import PlaneError, start


async def measure(kubeconfig: Path, directory: Path) -> list[Row]:
    credentials = await load_credentials(kubeconfig)
    table = [rows.import_time()]
    async with Client(credentials, user_agent="bench") as client, world(client, kubeconfig, directory) as made:
        claims = await made.make_claims(100)
        get = await floors.get_ms(credentials, claims[0])
        fsync = floors.fsync_ms(directory)
        scale = Scale(get=max(1.0, get / RIVAL_GET), fsync=max(1.0, fsync / RIVAL_FSYNC))
        table += rows.floors_rows(get, fsync)
        table += await rows.start(made)
        table += await rows.prepares(made, claims, scale)
        table += await rows.crash(made, claims)
        table += await rows.requests(made, credentials, claims[0])
        await made.delete_claims(claims)
    return table


PARTS = ("benchmarks.cel", "benchmarks.allocation", "benchmarks.explain", "benchmarks.sandbox")
"""Parts that need no cluster: each a process of its own, so that none has the memory of another."""


def without_a_cluster(directory: Path) -> list[Row]:
    table = []
    for part in PARTS:
        path = directory / f"{part}.json"
        # a budget that is exceeded is seen in the table
        subprocess.run([sys.executable, "-m", part, "--json", str(path)], stdout=subprocess.DEVNULL, check=False)
        table += read(path)
    return table


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--json", type=Path, help="write the figures there too")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        table = without_a_cluster(Path(directory))
    try:
        found = replace(find(), node=False)
        with start(found) as plane:
            table = asyncio.run(measure(plane.kubeconfig, plane.directory)) + table
    except (NotFound, PlaneError) as error:
        print(f"SKIPPED, all that needs a real API server: {error}", file=sys.stderr)
    show(table)
    print("\nrival: the Go example driver with its best settings, scaled by the floors where this machine is slower")
    if options.json:
        write(table, options.json)
    return 0 if all(row.within for row in table) else 1


if __name__ == "__main__":
    sys.exit(main())
