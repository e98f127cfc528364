"""Plain counting, and what prometheus-client makes of it."""

from __future__ import annotations

import re
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from dra_kit.process.measures import OTHER, BoundedLabel, Durations
from dra_kit.process.metrics import (
    DEVICE_INFO,
    FAMILIES,
    KUBELET_CLAIMS,
    LEADER,
    LOOP_LAG_SECONDS,
    PREPARED_CLAIMS,
    Metrics,
)

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "reference" / "metrics.md"


@given(st.lists(st.floats(min_value=0, max_value=100)), st.lists(st.floats(min_value=0, max_value=50), unique=True))
def test_a_duration_counts_in_each_bucket_whose_bound_it_does_not_pass(seconds: list[float], some: list[float]) -> None:
    bounds = sorted(some)
    durations = Durations(bounds)
    for one in seconds:
        durations.add(one)
    found = [count for _, count in durations.buckets()]
    assert found == [sum(one <= bound for one in seconds) for bound in (*bounds, float("inf"))]
    assert durations.count == len(seconds)


def test_words_of_others_do_not_grow_without_bound() -> None:
    words = BoundedLabel(2)
    assert [words.of(word) for word in ("a", "b", "c", "a", "d")] == ["a", "b", OTHER, "a", OTHER]


def test_numbers_are_told_in_the_text_format_with_the_labels_of_the_process() -> None:
    metrics, durations = Metrics(), Durations((0.1, 1.0))
    durations.add(0.5)
    metrics.read(lambda: [PREPARED_CLAIMS.of(3), LOOP_LAG_SECONDS.of(durations)], driver="dra.pizza")
    metrics.read(lambda: [KUBELET_CLAIMS.of(2, "prepare", "error", "deadline")])
    found = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(metrics.text().decode())
        for sample in family.samples
    }
    driver = ("driver", "dra.pizza")
    assert found["dra_driver_prepared_claims", driver] == 3
    assert found["dra_driver_event_loop_lag_seconds_bucket", driver, ("le", "0.1")] == 0
    assert found["dra_driver_event_loop_lag_seconds_bucket", driver, ("le", "1.0")] == 1
    assert found["dra_driver_event_loop_lag_seconds_count", driver] == 1
    labels = (("code", "deadline"), driver, ("method", "prepare"), ("result", "error"))
    assert found["dra_driver_kubelet_claims_total", *labels] == 2
    assert any(name == "process_start_time_seconds" for name, *_ in found)


def test_the_page_has_every_metric_and_no_other() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| (.*?) \| (.*?) \| (.*) \|$", PAGE.read_text(), re.MULTILINE)
    assert rows == [
        (
            family.shown_name,
            family.kind,
            ", ".join(f"`{label}`" for label in family.labels),
            ", ".join(family.roles),
            family.help,
        )
        for family in FAMILIES
    ]


def test_names_follow_the_conventions_of_prometheus() -> None:
    for family in FAMILIES:
        if family is not LEADER:  # dashboards of Kubernetes' controllers know it by that name
            assert re.fullmatch(r"dra_(driver|device)_[a-z_]+", family.name)
        assert not family.name.endswith("_total"), "the text format adds it"
        if family.kind == "histogram":
            assert family.name.endswith("_seconds")
        assert family.help.endswith(".")
        names_objects = {"claim", "pod", "namespace", "container", "device"} & set(family.labels)
        assert not names_objects or family is DEVICE_INFO, "as many series as there are objects"
