"""How many devices requests ask for."""

from __future__ import annotations

import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.diagnosis.lint.texts import DRIVER, GUARD, A, advertised, claim, device_class, found, rules, underlined

CARD: dict[str, object] = {"attributes": {"model": {"string": "H200"}}}
OTHER: dict[str, object] = {"attributes": {"model": {"string": "A100"}}}


def order(count: int, *, model: str = "", driver: str = DRIVER) -> str:
    """A claim for some devices of a driver, with its class."""
    body = f"deviceClassName: gpu\ncount: {count}"
    if model:
        body += f"\nselectors: [{{cel: {{expression: '{A}.model == \"{model}\"'}}}}]"
    guard = f'device.driver == "{driver}"'
    return f"{device_class(guard)}---\n{claim(body)}"


def test_more_devices_than_match_are_reported_with_how_many_there_are() -> None:
    (finding,) = found(order(9, model="H200"), advertised([CARD] * 4 + [OTHER]))

    assert (finding.rule, finding.level, underlined(finding)) == ("too-few-devices", "warning", "9")
    assert finding.message == "9 devices are requested, but only 4 known devices match"
    assert finding.help == "write count: 4"


@given(st.integers(1, 12), st.integers(1, 12))
def test_too_large_a_count_is_reported_only_if_fewer_devices_match(count: int, there: int) -> None:
    reported = rules(order(count), advertised([CARD] * there, complete=True))

    assert reported == (["too-few-devices"] if count > there else [])


def test_unknown_devices_may_be_many() -> None:
    assert rules(order(9)) == []
    assert rules(order(9, driver="nic.acme.org"), advertised([CARD])) == []


def test_shared_devices_can_be_allocated_several_times() -> None:
    shared = {**CARD, "allowMultipleAllocations": True}

    assert rules(order(9), advertised([shared], complete=True)) == []


def asking(amount: str, *, name: str = "memory") -> str:
    body = f"deviceClassName: gpu\ncapacity: {{requests: {{{name}: {amount}}}}}"
    return f"{device_class(GUARD)}---\n{claim(body)}"


@pytest.mark.parametrize("shared", [True, False])
def test_more_of_a_capacity_than_any_device_has_is_reported(*, shared: bool) -> None:
    cards = [{"capacity": {"memory": {"value": size}}, "allowMultipleAllocations": shared} for size in ("8Gi", "16Gi")]
    (finding,) = found(asking("17Gi"), advertised(cards))

    assert (finding.rule, finding.level, underlined(finding)) == ("too-much-capacity", "error", "17Gi")
    assert finding.message == "17Gi of memory is requested, but no matching device has more than 16Gi"
    assert finding.help == "request at most 16Gi"
    assert rules(asking("16Gi"), advertised(cards)) == []
    assert rules(asking("17Gi")) == [], "nothing is reported about unknown devices"


def test_a_capacity_that_no_device_has_is_reported() -> None:
    card: dict[str, object] = {"capacity": {"memory": {"value": "16Gi"}}}
    (finding,) = found(asking("1Gi", name="memmory"), advertised([card]))

    assert (finding.rule, underlined(finding)) == ("too-much-capacity", "memmory")
    assert finding.message == "1Gi of memmory is requested, but no matching device has a capacity of that name"
    assert finding.help == 'did you mean "memory"?'


def test_a_selector_that_matches_nothing_is_reported_as_such() -> None:
    assert rules(order(9, model="B300"), advertised([CARD], complete=True)) == ["matches-nothing"]


@pytest.mark.parametrize("mode", ["", "allocationMode: ExactCount"])
def test_a_count_of_zero_is_reported(mode: str) -> None:
    (finding,) = found(claim(f"deviceClassName: gpu\ncount: 0\n{mode}"))

    assert (finding.rule, finding.level, underlined(finding)) == ("zero-count", "warning", "0")


def test_alternatives_of_a_request_are_checked() -> None:
    ways = "[{name: many, deviceClassName: gpu, count: 3}, {name: one, deviceClassName: gpu}]"
    text = textwrap.dedent(
        f"""\
        apiVersion: resource.k8s.io/v1
        kind: ResourceClaim
        metadata: {{name: lunch}}
        spec: {{devices: {{requests: [{{name: gpu, firstAvailable: {ways}}}]}}}}
        """
    )
    (finding,) = found(f"{device_class(GUARD)}---\n{text}", advertised([CARD], complete=True))

    assert underlined(finding) == "3"
