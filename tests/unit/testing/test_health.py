"""Devices that tests and stories make ill, in a sandbox with a driver that has a health source."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from dra_kit.errors import ConfigurationError
from dra_kit.sandbox.stories.runner import run_story
from dra_kit.sandbox.stories.story import load_story
from dra_kit.testing import TestBed, sandbox
from tests.unit.testing.bakery import CLASSES, write_files

DRIVER = """\
from collections.abc import Iterator, Sequence

import dra_kit as dra


class Oven(dra.DeviceProvider):
    def discover(self) -> Iterator[Sequence[dra.Device]]:
        yield [dra.Device(name="bread-0")]


class Baker(dra.Preparer):
    def prepare(self, claim, device):
        return dra.Prepared(env={"BREAD": device.name})


class Nose(dra.HealthSource):
    policy = {"smoke": dra.HealthRule(taint="NoSchedule"), "fire": dra.HealthRule(withdraw=True, sticky=True)}

    def watch(self):
        for device in self.devices:
            yield dra.Healthy(device)

    def recovered(self, device, reason):
        return True


driver = dra.Driver("bread.example", provider=Oven(), preparer=Baker(), health=Nose())
"""

ORDER = """\
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: lunch}
spec: {devices: {requests: [{name: bread, exactly: {deviceClassName: bread}}]}}
---
apiVersion: v1
kind: Pod
metadata: {name: guest}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 0
  resourceClaims: [{name: lunch, resourceClaimName: lunch}]
  containers:
    - name: eater
      image: busybox:stable
      command: [sleep, "3600"]
      resources: {claims: [{name: lunch}]}
"""

STORY = """\
steps:
  - pods: {guest: {phase: Running, containers: {eater: {health: {lunch: Healthy}}}}}
  - health: {bread-0: {smoke: black, fire: red}}
    pods: {guest: {phase: Running, containers: {eater: {health: {lunch: Unhealthy}}}}}
  - health: {bread-0: {smoke: null}}
    pods: {guest: {phase: Running, containers: {eater: {health: {lunch: Unhealthy}}}}}
"""


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestBed]:
    project = tmp_path_factory.mktemp("bakery")
    files = {"bakery_with_a_nose.py": DRIVER, "deviceclasses.yaml": CLASSES}
    write_files(project, {"pyproject.toml": '[tool.dra-kit]\ndriver = "bakery_with_a_nose:driver"\n', **files})
    with sandbox(str(project)) as made:
        yield made


def test_device_becomes_unhealthy_and_recovers(bed: TestBed, tmp_path: Path) -> None:
    (tmp_path / "order.yaml").write_text(ORDER)
    with bed.harness("ill", directory=tmp_path) as dra:
        dra.unhealthy("bread-0", "smoke", "black")
        dra.apply("order.yaml")
        dra.wait("guest", message="cannot allocate all claims")
        dra.healthy("bread-0", "smoke")
        guest = dra.wait("guest")
        assert guest.containers["eater"].environment["BREAD"] == "bread-0"


def test_a_story_makes_a_device_ill_and_nothing_of_it_is_left(bed: TestBed, tmp_path: Path) -> None:
    (tmp_path / "order.yaml").write_text(ORDER)
    (tmp_path / "expect.yaml").write_text(STORY)
    result = bed.background.call(run_story(load_story(tmp_path), bed.cluster, timeout=60))
    assert result.passed, result.report()


@pytest.mark.parametrize(
    ("device", "reason", "problem"),
    [
        ("bread-1", "smoke", "health of device bread-1: driver bread.example has no such device; it has bread-0"),
        ("bread-0", "smok", "reason 'smok' is not in the policy of Nose; did you mean \"smoke\"?"),
    ],
)
def test_unhealthy_rejects_unknown_device_or_reason(
    bed: TestBed, tmp_path: Path, device: str, reason: str, problem: str
) -> None:
    with (
        bed.harness("mistake", directory=tmp_path) as dra,
        pytest.raises(ConfigurationError, match=re.escape(problem)),
    ):
        dra.unhealthy(device, reason)
