"""Selectors that fail or match nothing: their mistakes and remedies."""

from __future__ import annotations

import pytest

from dra_kit.diagnosis.explain.documents import claim_document
from tests.unit.diagnosis.explain.world import (
    PIZZA,
    Document,
    claim,
    cluster,
    device,
    device_class,
    explain,
    request,
    slice_of,
)

DRIVER = "gpu.example.com"


def card(name: str, **more: Document) -> Document:
    return device(name, attributes={"family": {"string": "fpga"}, "shell": {"version": "2.1.0"}, **more})


@pytest.mark.parametrize(
    ("selector", "wrong", "remedy"),
    [
        (
            f'{PIZZA}.famly == "fpga"',
            f'request r: no device has an attribute famly in the domain "{DRIVER}"',
            'did you mean "family"? they have family, shell (request r)',
        ),
        (
            f'has({PIZZA}.famly) && {PIZZA}.famly == "fpga"',
            f'request r: no device has an attribute famly in the domain "{DRIVER}"',
            'did you mean "family"? they have family, shell (request r)',
        ),
        (f'{PIZZA}.family = "fpga"', "request r: CEL has no =", "write == (request r)"),
        (
            f'{PIZZA}.shell == "2.1.0"',
            "request r: shell is a version, and never equal to a string",
            f'write {PIZZA}.shell == semver("2.1.0") (request r)',
        ),
    ],
)
def test_a_mistake_in_a_selector_is_reported_with_what_to_write_instead(selector: str, wrong: str, remedy: str) -> None:
    explanation = explain(cluster(slice_of(card("a"), card("b"))), claim(request("r", 1, selector)))

    assert explanation.blockers[0] == wrong
    assert explanation.remedies == (remedy,)


def test_a_mistake_in_a_class_is_reported_for_the_class() -> None:
    where = cluster(slice_of(card("a")), classes=[device_class("any", f'{PIZZA}.famly == "fpga"')])

    assert explain(where, claim(request())).remedies == ('did you mean "family"? they have family, shell (class any)',)


def test_an_attribute_that_only_some_devices_have_is_to_be_asked_for_first() -> None:
    where = cluster(slice_of(card("a", slot={"int": 1}), card("b")))

    explanation = explain(where, claim(request("r", 1, f"{PIZZA}.slot == 0")))

    assert explanation.outcome == "error"
    assert explanation.remedies == (f"check first: has({PIZZA}.slot) && … (request r)",)


def test_devices_of_other_drivers_are_to_be_ruled_out_first() -> None:
    where = cluster(slice_of(card("a")), slice_of(device("nic"), name="other", pool="other", driver="nic.example.com"))

    explanation = explain(where, claim(request("r", 1, f'{PIZZA}.family == "fpgas"')))

    assert explanation.remedies == (f'begin with device.driver == "{DRIVER}" && (request r)',)


def test_programs_get_the_remedy_of_the_claim_and_of_each_device() -> None:
    document = claim_document(explain(cluster(slice_of(card("a"))), claim(request("r", 1, f"{PIZZA}.famly == 1"))))

    remedy = 'did you mean "family"? they have family, shell (request r)'
    assert document["remedies"] == [remedy]
    [found] = document["requests"][0]["choices"][0]["devices"]
    assert [reason["remedy"] for reason in found["reasons"]] == [remedy]


def test_a_selector_that_requires_another_value_is_not_a_mistake() -> None:
    explanation = explain(cluster(slice_of(card("a"))), claim(request("r", 1, f'{PIZZA}.family == "cgra"')))

    assert explanation.remedies == ()
