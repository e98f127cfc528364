"""Tells the first story live, on a real cluster: ``python -m tests.cluster.demo``.

Exit code 0 only when all of it was true: the pod got its pizza, and nothing was left over.
"""

from __future__ import annotations

import asyncio
import sys

from dra_kit.errors import DraKitError
from dra_kit.sandbox.story import load_story
from dra_kit.sandbox.story_run import StoryResult, run_story
from dra_kit.sandbox.view import TerminalView
from tests.cluster.find import NotFound, find
from tests.cluster.node_driver import NodeDriver
from tests.cluster.pizza import STORIES, pizza_driver
from tests.cluster.plane import PlaneError, start
from tests.cluster.processes import ProcessFailed


def main() -> int:
    """Start everything, tell the story, take everything down."""
    try:
        found = find()
    except NotFound as error:
        print(f"the demo needs a Kubernetes with a node: {error}", file=sys.stderr)
        return 1
    if not found.node:
        print(f"the demo needs a Kubernetes with a node; found {found.why}", file=sys.stderr)
        return 1
    try:
        print(f"starting Kubernetes: {found.why}", flush=True)
        with start(found) as plane:
            print("starting the driver", flush=True)
            with pizza_driver(plane) as driver:
                result = asyncio.run(_tell(driver))
            print("\ntaking everything down", flush=True)
    except (PlaneError, ProcessFailed, DraKitError) as error:
        print(f"the demo could not be told: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; everything was taken down", file=sys.stderr)
        return 130
    print(result.report())
    return 0 if result.passed else 1


async def _tell(driver: NodeDriver) -> StoryResult:
    async with driver.cluster() as cluster:
        view = TerminalView(cluster, sys.stdout)
        return await run_story(load_story(STORIES / "order-by-claim"), cluster, observer=view)


if __name__ == "__main__":
    sys.exit(main())
