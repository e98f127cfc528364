"""Which CPUs a claim takes."""

from __future__ import annotations

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpu_driver.preparer import take
from cpu_driver.topology import format_cpus, parse_cpus, read_profile
from tests.machines import PROFILES, profile

TWO_SOCKETS = read_profile(profile("two-sockets").read_text(encoding="utf-8"))
TOPOLOGIES = [read_profile(profile(name).read_text(encoding="utf-8")) for name in PROFILES]


@pytest.mark.parametrize(
    ("free", "count", "expected"),
    [
        pytest.param("0-63", 32, "0-15,32-47", id="a NUMA node"),
        pytest.param("0-63", 16, "0-7,32-39", id="an L3 cache"),
        pytest.param("1-63", 16, "8-15,40-47", id="an L3 cache that is free as a whole"),
        pytest.param("0-63", 4, "0-1,32-33", id="whole cores"),
        pytest.param("0-63", 3, "0-1,32", id="whole cores, and a thread"),
        pytest.param("0-3,32-34", 1, "3", id="the sibling of a CPU in use"),
        pytest.param("0-3,8-11,40-43", 4, "8-9,40-41", id="whole cores before single threads"),
        pytest.param("4-15,36-47", 8, "4-7,36-39", id="the cache that is left with least"),
        pytest.param("0,9,18,27", 3, "0,9,18", id="single threads"),
        pytest.param("0-63", 0, "", id="none"),
    ],
)
def test_cpus_are_packed(free: str, count: int, expected: str) -> None:
    assert format_cpus(take(TWO_SOCKETS, parse_cpus(free), count)) == expected


@hypothesis.settings(deadline=None)
@given(st.data())
def test_taken_cpus_are_free_and_split_at_most_one_free_core(data: st.DataObject) -> None:
    topology = data.draw(st.sampled_from(TOPOLOGIES))
    free = data.draw(st.frozensets(st.sampled_from(sorted(topology.online))))
    count = data.draw(st.integers(0, len(free)))
    taken = take(topology, free, count)
    assert len(taken) == count
    assert taken <= free
    split = [core for core in topology.cores if core <= free and 0 < len(core & taken) < len(core)]
    assert len(split) <= 1
