"""A driver with one fault fails exactly the check that is about it; a right one passes all.

With ``CONFORMANCE_ALL=1`` each fault is judged by all checks of its group. Otherwise, if the group is large, it is only
judged by its own and a third of the others, so that CI has the time for it.
"""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

import pytest
import yaml

from dra_kit.conformance import api_and_life_cycle, slices
from dra_kit.conformance.profile import DriverProfile, DriverRights
from dra_kit.conformance.runner import (
    FUNCTIONS,
    CheckStatus,
    ConformanceReport,
    ConformanceSettings,
    judge,
)
from dra_kit.sandbox.drivers.commands import parse_commands
from tests.support import conformance_driver

pytestmark = pytest.mark.timeout(600)
REPOSITORY = Path(__file__).parents[2]
RIGHTS = REPOSITORY / "tests/support/conformance_rights.yaml"
PROFILE = DriverProfile.model_validate({
    "driver": conformance_driver.DRIVER,
    "expect": {"env": {"GPU_0": "gpu-*"}},
    "configurations": [
        {"parameters": {"mode": "fast"}, "expect": {"env": {"GPU_*_MODE": "fast"}}},
        {"parameters": {"mode": "slow"}, "expect": {"env": {"GPU_*_MODE": "slow"}}},
    ],
    "orphansWithin": 40,
    "metadataUpdatedWithin": 60,
    "apiVersions": ["v1", "v1beta2"],
    "steadyAfter": 2,
    "restoredWithin": 30,
    "withoutDevices": {"NO_DEVICES": "1"},
})  # fmt: skip
START_WITHIN = {"R1": 8.0, "L2": 40.0, "A1": 40.0}
"""Seconds that a driver gets which never registers."""
SHORTER = {
    "STEADY_SECONDS": 3.0,
    "REPETITION_SECONDS": 3.0,
    "CACHE_SECONDS": conformance_driver.CACHED_SECONDS + 5,
}
"""Waits that are longer than these drivers need: a wrong one writes several times a second."""
SLOW_SECONDS = 0.5
"""How long each request to the API server takes a slow driver: more than ten times as long as a quick one."""
_LARGE = 9  # checks of a group
DOES_NOT_APPLY = {"R10", "H4"}
"""Checks that cannot apply to a driver with two sockets and a health service."""


@pytest.fixture(autouse=True)
def shorter_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in SHORTER.items():
        monkeypatch.setattr(slices, name, seconds)


def rights(fault: str, folder: Path) -> Path:
    """Return the manifests with the driver's rights: without a policy for A2, without a rule for A4."""
    documents = [*yaml.safe_load_all(RIGHTS.read_text(encoding="utf-8"))]
    for document in documents:
        if fault == "A4" and document["kind"] == "ClusterRole":
            document["rules"] = [rule for rule in document["rules"] if "resourceclaims/driver" not in rule["resources"]]
    if fault == "A2":
        documents = [document for document in documents if "Policy" not in document["kind"]]
    path = folder / "rights.yaml"
    path.write_text(yaml.safe_dump_all(documents), encoding="utf-8")
    return path


async def judged(fault: str, only: str, folder: Path, **environment: float) -> ConformanceReport:
    words = [f"PYTHONPATH={REPOSITORY}", sys.executable, "-m", "tests.support.conformance_driver", fault]
    text = f"{shlex.join(words)} {{pod_uid}}"
    [command] = parse_commands("command", [text], directory=Path.cwd())
    rbac = DriverRights(manifests=[rights(fault, folder)], service_account="gpu-driver/gpu-driver")
    variables = {name: str(value) for name, value in environment.items()}
    changes = {"start_within": START_WITHIN.get(fault, 60.0), "rbac": rbac, "environment": variables}
    profile = PROFILE.model_copy(update=changes)
    return await judge(ConformanceSettings(subject=text, command=lambda _: command, profile=profile, only=only))


def texts(report: ConformanceReport) -> list[str]:
    return [
        f"{item.check.id} {item.status}: {'; '.join(item.evidence)}"
        for item in report.outcomes
        if item.status is not CheckStatus.PASSED
    ]


@pytest.mark.parametrize("group", dict.fromkeys(check[0] for check in FUNCTIONS))
async def test_a_right_driver_passes_every_check(group: str, tmp_path: Path) -> None:
    report = await judged("none", group, tmp_path)
    found = {item.check.id: item.status for item in report.outcomes if item.status is not CheckStatus.PASSED}
    expected = {check for check in DOES_NOT_APPLY if check[0] == group}
    assert found == dict.fromkeys(expected, CheckStatus.NOT_APPLICABLE), texts(report)
    assert report.conforms


async def test_a_fault_is_found_after_a_check_that_watches_writes(tmp_path: Path) -> None:
    report = await judged("S8", "S2,S8", tmp_path)
    assert [item.check.id for item in report.having(CheckStatus.FAILED)] == ["S8"], texts(report)


async def test_a_right_driver_with_one_socket_and_no_health_passes(tmp_path: Path) -> None:
    report = await judged("shared", "R1,R9,R10,P2,H4", tmp_path)
    assert texts(report) == []


async def test_a_deletion_that_a_cache_of_writes_hides_is_not_a_fault_of_s4(tmp_path: Path) -> None:
    report = await judged("cached", "S4", tmp_path)
    assert texts(report) == []
    assert report.outcomes[0].seconds > PROFILE.restored_within  # the first deletion was missed


@pytest.mark.parametrize("only", ["R3,P19,U5,L3", "S2,S3,S8", "S9,S12,S14"])
async def test_a_right_driver_passes_on_a_slow_machine(only: str, tmp_path: Path) -> None:
    report = await judged("none", only, tmp_path, SLOW=SLOW_SECONDS)
    assert texts(report) == []


@pytest.mark.parametrize("fault", ["U5", "S9", "S13", "L3"])
async def test_a_fault_is_found_on_a_slow_machine(fault: str, tmp_path: Path) -> None:
    report = await judged(fault, fault, tmp_path, SLOW=SLOW_SECONDS)
    assert [item.check.id for item in report.having(CheckStatus.FAILED)] == [fault], texts(report)


async def test_a_driver_that_neither_exits_nor_registers_is_shown_with_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_and_life_cycle, "_EXIT_SECONDS", 2.0)
    monkeypatch.setitem(START_WITHIN, "L2", 20.0)
    [outcome] = (await judged("L2", "L2", tmp_path)).outcomes
    [text] = [line for line in outcome.evidence if "did not exit" in line]
    assert text.endswith("did not register or exit in the 20 s after the path was free")


@pytest.mark.parametrize("seconds", [4.0, 9.0])
async def test_a_loop_of_writes_is_found_at_any_pace(
    seconds: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slices, "REPETITION_SECONDS", 30.0)
    [outcome] = (await judged("S9", "S9", tmp_path, ROUND=seconds)).outcomes
    assert outcome.status is CheckStatus.FAILED
    assert "although the API server drops" in outcome.evidence[0]  # at once or later, by how busy this machine is


@pytest.mark.parametrize(("fault", "evidence", "slow", "waits"), [
    ("U5", "after that, these CDI devices appeared", 1.5, 8.0),
    ("U5", "after that, these CDI devices appeared", 0.0, 2.5),
    ("P19", "while it waited for the API server", 0.0, 2.5),
])  # fmt: skip
async def test_a_fault_is_found_of_a_driver_that_waits_less_for_the_api_server(
    fault: str, evidence: str, slow: float, waits: float, tmp_path: Path
) -> None:
    [outcome] = (await judged(fault, fault, tmp_path, SLOW=slow, WAITS=waits)).outcomes
    assert (outcome.status, evidence in str(outcome.evidence)) == (CheckStatus.FAILED, True), outcome.evidence


async def test_a_driver_that_waits_less_than_a_call_is_not_judged_by_a_late_prepare(tmp_path: Path) -> None:
    [outcome] = (await judged("none", "U5", tmp_path, WAITS=0.4)).outcomes
    assert outcome.status is CheckStatus.NOT_APPLICABLE
    assert "the driver waits for the API server for less than 1 s" in outcome.evidence[0]


def checks_of(fault: str) -> str:
    """Return the checks by which a driver with a fault is judged: its own, and some of the same group."""
    group = [check for check in FUNCTIONS if check[0] == fault[0]]
    step = 1 if os.environ.get("CONFORMANCE_ALL") or len(group) < _LARGE else 3
    return ",".join(check for place, check in enumerate(group) if (place - group.index(fault)) % step == 0)


def test_each_check_is_tried_with_another_fault() -> None:
    tried = {check for fault in FUNCTIONS for check in checks_of(fault).split(",") if check != fault}
    assert tried == FUNCTIONS.keys()


@pytest.mark.parametrize("fault", FUNCTIONS)
async def test_a_fault_is_found_by_its_check_only(fault: str, tmp_path: Path) -> None:
    report = await judged(fault, checks_of(fault), tmp_path)
    assert [item.check.id for item in report.having(CheckStatus.FAILED)] == [fault], texts(report)
    evidence = report.having(CheckStatus.FAILED)[0].evidence
    assert 1 <= len(evidence) <= 10
    assert all(evidence)
