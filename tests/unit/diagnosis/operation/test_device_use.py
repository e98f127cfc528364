"""Rows of device uses: answers of drivers merged with those of the kubelet."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dra_kit.kubelet.device_use import DeviceUse, with_users

words = st.sampled_from(["", "a", "b"])
uses = st.builds(
    DeviceUse,
    driver=words, pool=words, device=words, share=words, request=words, namespace=words, claim=words, claim_uid=words,
    hardware_ids=st.lists(words.filter(bool), max_size=2).map(tuple),
)  # fmt: skip
users = st.builds(
    DeviceUse,
    driver=words, pool=words, device=words, share=words, namespace=words, claim=words,
    pod=words.filter(bool), container=words.filter(bool),
)  # fmt: skip

GPU = DeviceUse(
    driver="gpu.example", pool="node-1", device="gpu-0", request="gpu", hardware_ids=("GPU-1", "MIG-2"),
    namespace="team", claim="train", claim_uid="u1",
)  # fmt: skip


def test_a_device_of_a_claim_that_two_containers_share_is_reported_for_each() -> None:
    by_kubelet = replace(GPU, request="", hardware_ids=(), claim_uid="", pod="trainer")
    joined = with_users([GPU], [replace(by_kubelet, container=name) for name in ("main", "watcher")])
    assert [(use.container, use.hardware_ids, use.claim_uid) for use in joined] == [
        ("main", ("GPU-1", "MIG-2"), "u1"),
        ("watcher", ("GPU-1", "MIG-2"), "u1"),
    ]


def test_shares_of_one_device_are_distinguished() -> None:
    shares = [replace(GPU, share=share, claim=f"claim-{share}") for share in ("s1", "s2")]
    joined = with_users(shares, [replace(use, pod=f"pod-{use.share}", container="main") for use in shares])
    assert [(use.share, use.pod) for use in joined] == [("s1", "pod-s1"), ("s2", "pod-s2")]


@given(st.lists(uses), st.lists(users))
def test_merging_sources_loses_no_use_and_invents_no_container(
    reported: list[DeviceUse], by_kubelet: list[DeviceUse]
) -> None:
    joined = with_users(reported, by_kubelet)
    assert {use.allocation for use in joined} == {use.allocation for use in [*reported, *by_kubelet]}
    assert {use.identity for use in joined if use.container} == {use.identity for use in by_kubelet}
    assert {use.hardware_ids for use in joined} >= {use.hardware_ids for use in reported}
    assert len(set(joined)) == len(joined)
    assert with_users(joined, by_kubelet) == joined  # drivers may have asked the kubelet themselves


@given(uses)
def test_a_row_survives_json(use: DeviceUse) -> None:
    assert DeviceUse.from_json(use.to_json()) == use


def test_fields_missing_from_an_older_release_are_unknown() -> None:
    assert DeviceUse.from_json({"driver": "d", "pool": "p", "device": "x", "later": 1}) == DeviceUse(
        driver="d", pool="p", device="x"
    )
    with pytest.raises(ValueError, match="not a device in use"):
        DeviceUse.from_json({"driver": 1})


@pytest.mark.parametrize(
    ("wanted", "fits"),
    [
        ("GPU-1", True), ("MIG-2", True), ("gpu-0", True), ("node-1/gpu-0", True), ("team/train", True),
        ("trainer", True), ("team/trainer", True), ("other/trainer", False), ("GPU", False), ("node-9", True),
    ],
)  # fmt: skip
def test_user_columns_are_parsed(wanted: str, fits: bool) -> None:
    assert replace(GPU, pod="trainer", node="node-9").fits(wanted) is fits
