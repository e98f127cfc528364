"""The harness of one test, for as long as the test lasts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from dra_kit.sandbox.stories.expectations.facts import Cluster
from dra_kit.sandbox.stories.stage import Stage, namespace_for
from dra_kit.testing.background import Background
from dra_kit.testing.harness import Harness

__tracebackhide__ = True  # pytest shows the test's own line instead


class NotReached(AssertionError):
    """The driver was to be killed after a step, and did not come to it in the whole test."""


@contextmanager
def staged(
    cluster: Cluster,
    background: Background,
    test: str,
    *,
    directory: Path,
    timeout: float,
    labels: Mapping[str, str],
    process: bool,
    killed_after: str,
    killed_driver: str,
) -> Iterator[Harness]:
    """Yield the harness of one test; in the end, delete everything it created.

    Raises:
        AssertionError: something is left over although the test passed: claims, CDI files, records, effects, devices.
        NotReached: the driver was to be killed after a step that it has not reached.
    """
    for driver in cluster.drivers:
        background.call(cluster.control(driver).in_process(process))
    stage = Stage(cluster, namespace_for("test", test), labels=labels, timeout=timeout)
    background.call(stage.open())
    try:
        if killed_after:
            background.call(cluster.control(killed_driver).kill_after(killed_after))
        yield Harness(cluster, background, stage, directory)
    except BaseException:
        background.call(stage.close())
        raise
    leftovers = background.call(stage.close())
    if leftovers:
        raise AssertionError("left over after the test: " + ", ".join(leftovers))
    if stage.unreached:
        raise NotReached(f"the driver was to be killed after {stage.unreached}, and has not come to it in this test")
