"""A chart that is installed with another driverName than the driver's: what its pods say on a real node."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.deployed import KUBELET_DIR, wait_until
from tests.cluster.documented import run_command
from tests.cluster.pizza import DRIVER
from tests.cluster.plane import Plane
from tests.cluster.release import Release, release

MISNAMED = "cellar.pizza.example"
ERROR = (
    f"TARGET is driver {DRIVER}, but --driver (DRA_DRIVER; driverName in the chart's values) is {MISNAMED}; "
    f"set driverName to {DRIVER}, or correct TARGET"
)


@pytest.fixture(scope="module")
def misnamed(node_plane: Plane, pizza_image: str) -> Iterator[Release]:
    """The release, once the pods of both roles have ended at least once."""
    repository, _, tag = pizza_image.rpartition(":")
    values = {
        "driverName": MISNAMED,
        "target": "pizza_driver.driver:driver",
        "image": {"repository": repository, "tag": tag},
        "node": {"nodeSelector": {"kubernetes.io/hostname": node_plane.node}},
        "controller": {"replicas": 1},
    }
    with release(node_plane, "misnamed", values) as made:
        made.apply()
        for role in ("node", "controller"):
            wait_until(f"the {role} role has ended", partial(terminated, made, role))
        yield made
    (KUBELET_DIR / "plugins" / MISNAMED).rmdir()  # the chart's hostPath made it; nothing was written there


def terminated(made: Release, role: str) -> Any:
    """How a role's container has ended last; None where it has not."""
    for pod in made.pods(role):
        for status in pod["status"].get("containerStatuses", []):
            ended = status["state"].get("terminated") or status["lastState"].get("terminated")
            if ended:
                return ended
    return None


@pytest.mark.parametrize("role", ["node", "controller"])
def test_the_log_names_both_drivers_and_the_value_to_set(role: str, misnamed: Release) -> None:
    # a container that is just being started again has not logged anything yet
    wait_until("the log names both drivers", lambda: ERROR in misnamed.log(role))

    assert "Read-only file system" not in misnamed.log(role)
    assert terminated(misnamed, role)["exitCode"] == 2


@pytest.mark.parametrize("role", ["node", "controller"])
def test_kubectl_describe_shows_it(role: str, misnamed: Release) -> None:
    assert ERROR in terminated(misnamed, role)["message"]


def test_check_names_it(misnamed: Release, tmp_path: Path) -> None:
    result = run_command(misnamed.plane, f"dra-kit check --driver {MISNAMED}", tmp_path)

    assert result.returncode == 1
    assert ERROR in result.stdout
