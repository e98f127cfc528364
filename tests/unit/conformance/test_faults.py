"""A driver with one fault fails exactly the check that is about it; a right one passes all."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from dra_kit.conformance.profile import DriverProfile
from dra_kit.conformance.runner import (
    FUNCTIONS,
    CheckStatus,
    ConformanceReport,
    ConformanceSettings,
    judge,
)
from dra_kit.conformance.subject import SubjectCommand
from tests.support import conformance_driver

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]
REPOSITORY = Path(__file__).parents[3]
PROFILE = DriverProfile.model_validate({
    "driver": conformance_driver.DRIVER,
    "expect": {"env": {"GPU_0": "gpu-*"}},
    "configurations": [
        {"parameters": {"mode": "fast"}, "expect": {"env": {"GPU_*_MODE": "fast"}}},
        {"parameters": {"mode": "slow"}, "expect": {"env": {"GPU_*_MODE": "slow"}}},
    ],
    "orphansWithin": 30,
})  # fmt: skip
START_WITHIN = {"R1": 8.0, "R10": 60.0}
"""Seconds that a driver gets which never registers."""
DOES_NOT_APPLY = {"R10"}
"""Checks that cannot apply to a driver with two sockets."""


async def judged(fault: str, only: str) -> ConformanceReport:
    words = [f"PYTHONPATH={REPOSITORY}", sys.executable, "-m", "tests.support.conformance_driver", fault]
    text = f"{shlex.join(words)} {{pod_uid}}"
    profile = PROFILE.model_copy(update={"start_within": START_WITHIN.get(fault, 60.0)})
    return await judge(
        ConformanceSettings(
            subject=text, command=lambda places: SubjectCommand.parse(text, places), profile=profile, only=only
        )
    )


def texts(report: ConformanceReport) -> list[str]:
    return [
        f"{item.check.id} {item.status}: {'; '.join(item.evidence)}"
        for item in report.outcomes
        if item.status is not CheckStatus.PASSED
    ]


async def test_a_right_driver_passes_every_check() -> None:
    report = await judged("none", "")
    found = {item.check.id: item.status for item in report.outcomes if item.status is not CheckStatus.PASSED}
    assert found == dict.fromkeys(DOES_NOT_APPLY, CheckStatus.NOT_APPLICABLE), texts(report)
    assert report.conforms


async def test_a_right_driver_with_one_socket_passes() -> None:
    report = await judged("shared", "R1,R9,R10,P2")
    assert texts(report) == []


@pytest.mark.parametrize("fault", FUNCTIONS)
async def test_a_fault_is_found_by_its_check_only(fault: str) -> None:
    report = await judged(fault, fault[0])
    assert [item.check.id for item in report.having(CheckStatus.FAILED)] == [fault], texts(report)
    evidence = report.having(CheckStatus.FAILED)[0].evidence
    assert 1 <= len(evidence) <= 10
    assert all(evidence)
