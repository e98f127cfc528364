from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_kit.kubernetes.resource import names

_LABELS = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", fullmatch=True)


@given(_LABELS)
def test_dns_label_is_valid_subdomain_label_value_and_key(label: str) -> None:
    for check in (names.dns_label, names.dns_subdomain, names.label_value, names.label_key):
        assert check(label) == []


@given(st.lists(_LABELS, min_size=2, max_size=3))
def test_dotted_labels_are_subdomain_but_not_label(labels: list[str]) -> None:
    name = ".".join(labels)
    assert names.dns_subdomain(name) == []
    assert "must not contain dots" in names.dns_label(name)


@pytest.mark.parametrize("unit", ["bytes", "characters"])
def test_dns_label_is_limited_to_63_bytes(unit: names.Unit) -> None:
    assert names.dns_label("a" * 63, unit=unit) == []
    assert names.dns_label("a" * 64, unit=unit) == [f"must be no more than 63 {unit}"]


def test_label_key_reports_problems_of_each_part() -> None:
    problems = names.label_key("Example.com/-k")
    assert [problem.split(" ", 2)[:2] for problem in problems] == [["prefix", "part"], ["name", "part"]]


@pytest.mark.parametrize(
    ("check", "good", "bad"),
    [
        (names.c_identifier, "_Name1", "1name"),
        (names.label_value, "", "a b"),
        (names.label_key, "example.com/key", "/key"),
        (names.label_key, "key", "a/b/c"),
        (names.condition_reason, "Ready:Now", "not ok"),
        (names.dns_subdomain, "a.b", "a..b"),
        (names.dns_label, "a", "a\n"),
    ],
)
def test_format(check: Callable[[str], list[str]], good: str, bad: str) -> None:
    assert check(good) == []
    assert len(check(bad)) == 1


def test_lone_surrogate_is_invalid_name() -> None:
    assert names.dns_label("\ud800") != []
