"""The driver is killed after each step of a claim's life."""

from __future__ import annotations

from pathlib import Path

import pytest
from dra_kit.testing import Harness

from cpu_driver.topology import parse_cpus

STORIES = Path(__file__).parents[1] / "stories"


@pytest.mark.dra_killed
def test_killed_driver_gives_each_container_its_cpus(dra: Harness) -> None:
    # a container that is created while the driver is dead fails, and is started again
    pods = (STORIES / "several-claims" / "pods.yaml").read_text(encoding="utf-8")
    dra.apply(pods.replace("restartPolicy: Never", "restartPolicy: Always"))
    dra.wait_for(lambda: all("main" in dra.wait(name).containers for name in ("first", "second")))
    first, second = (parse_cpus(dra.wait(name).containers["main"].cpuset or "") for name in ("first", "second"))
    assert (len(first), len(second), first & second) == (12, 8, frozenset())
    dra.delete("Pod/first")
    dra.delete("Pod/second")
    dra.delete("ResourceClaim/first")
    dra.delete("ResourceClaim/second")
    dra.apply(STORIES / "forged-variable" / "order.yaml")
    assert dra.wait("forger").containers["main"].cpuset == "1-31,33-63"
