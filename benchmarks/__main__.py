"""``python -m benchmarks [--json FILE]``: measure everything, print the table, exit 1 when a budget is exceeded."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from dataclasses import asdict, replace
from pathlib import Path

from benchmarks import floors, rows
from benchmarks.rows import RIVAL_FSYNC, RIVAL_GET, Row, Scale
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


def show(table: list[Row]) -> None:
    print(f"{'what':44} {'ours':>10} {'budget':>10} {'rival':>10}")
    for row in table:
        figure, budget, rival = (
            "" if value is None else f"{value:,.2f}".rstrip("0").rstrip(".")
            for value in (row.figure, row.budget, row.rival)
        )
        mark = "" if row.within else "  OVER BUDGET"
        print(f"{row.name:44} {figure:>10} {budget:>10} {rival:>10} {row.unit}{mark}")
    print("\nrival: the Go example driver with its best settings, scaled by the floors where this machine is slower")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--json", type=Path, help="write the figures there too")
    options = parser.parse_args()
    try:
        found = replace(find(), node=False)
        with start(found) as plane:
            table = asyncio.run(measure(plane.kubeconfig, plane.directory))
    except (NotFound, PlaneError) as error:
        print(f"SKIPPED: {error}", file=sys.stderr)
        return 0
    show(table)
    if options.json:
        options.json.write_text(json.dumps([asdict(row) | {"within": row.within} for row in table], indent=2) + "\n")
    return 0 if all(row.within for row in table) else 1


if __name__ == "__main__":
    sys.exit(main())
