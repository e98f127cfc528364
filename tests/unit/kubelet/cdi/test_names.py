from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_kit.errors import PermanentError
from dra_kit.kubelet.cdi.spec import (
    CDIDevice,
    SpecEdits,
    build_spec,
    check_qualified_name,
    valid_device_name,
    validate_spec,
)
from dra_kit.kubelet.cdi.store import (
    claim_device_name,
    claim_kind,
    claim_uid_of,
    is_temporary_file,
    spec_file_name,
    temporary_file_name,
)
from tests.unit.kubelet.cdi import strategies

label = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,14}[a-z0-9])?", fullmatch=True)
subdomains = st.lists(label, min_size=1, max_size=3).map(".".join)
drivers = subdomains | subdomains.map(str.upper) | st.just("9" * 63) | st.just("a.example-claim")
uids = st.uuids().map(str)


@given(strategies.vendors, strategies.classes, strategies.device_names)
def test_a_qualified_name_is_accepted(vendor: str, class_name: str, name: str) -> None:
    text = f"{vendor}/{class_name}={name}"
    assert check_qualified_name(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a",
        "a/b",
        "a=b",
        "a/=b",
        "/a=b",
        "a/b=",
        "1a/b=c",
        "a/1b=c",
        "a-/b=c",
        "a/b/c=d",
        "a/b=c/d",
        "a/b=é",
        "a/b=c=",
    ],
)
def test_invalid_qualified_name_is_rejected_with_the_rule(text: str) -> None:
    with pytest.raises(PermanentError, match=r"cannot exist: a ") as caught:
        check_qualified_name(text)
    assert caught.value.code == "invalid-cdi-name"
    assert repr(text) in caught.value.message


@given(drivers)
def test_every_driver_name_gives_a_kind_that_cdi_accepts(driver: str) -> None:
    device = CDIDevice(name="x", container_edits=SpecEdits(env=("A=1",)))
    assert validate_spec(build_spec(claim_kind(driver), (device,))) == []


@given(uids, st.tuples(label, label, label), st.none() | uids)
def test_device_names_of_claims_are_valid(uid: str, parts: tuple[str, str, str], share: str | None) -> None:
    request, pool, device = parts
    name = claim_device_name(uid, request=f"{request}/sub", pool=f"{pool}/b.c", device=device, share_id=share or "")
    assert valid_device_name(name)


results = st.tuples(label | st.builds("{}/{}".format, label, label), subdomains, label, st.just("") | uids)


@given(uids, results, results)
def test_device_names_differ_when_the_allocation_results_differ(
    uid: str, one: tuple[str, str, str, str], two: tuple[str, str, str, str]
) -> None:
    names = [
        claim_device_name(uid, request=request, pool=pool, device=device, share_id=share)
        for request, pool, device, share in (one, two)
    ]
    assert (names[0] == names[1]) == (one == two)


@given(drivers, st.text(min_size=1, max_size=12))
def test_a_file_name_is_safe_and_gives_the_uid_back(driver: str, uid: str) -> None:
    name = spec_file_name(driver, uid)
    assert Path(name).name == name
    assert not name.startswith(".")
    assert name.isascii()
    assert claim_uid_of(driver, name) == uid


@given(drivers, st.text(min_size=1, max_size=12))
def test_runtimes_ignore_temporary_files(driver: str, uid: str) -> None:
    name = temporary_file_name(spec_file_name(driver, uid), "0a1b")
    assert not name.endswith((".json", ".yaml"))
    assert is_temporary_file(driver, name)
    assert claim_uid_of(driver, name) is None


@given(drivers, drivers, uids)
def test_driver_ignores_spec_files_of_other_drivers(mine: str, other: str, uid: str) -> None:
    name = spec_file_name(other, uid)
    assert (claim_uid_of(mine, name) is not None) == (mine == other)
    assert is_temporary_file(mine, temporary_file_name(name, "0a")) == (mine == other)


@given(st.text(max_size=40))
def test_any_file_name_is_a_claims_file_or_ignored(rest: str) -> None:
    name = f"k8s.gpu.example.com-claim_{rest}.json"
    uid = claim_uid_of("gpu.example.com", name)
    assert uid is None or spec_file_name("gpu.example.com", uid) == name


@pytest.mark.parametrize("uid", ["", "a" * 300, "é" * 60])
def test_a_uid_that_is_empty_or_too_long_is_refused(uid: str) -> None:
    with pytest.raises(PermanentError, match="CDI file name") as caught:
        spec_file_name("gpu.example.com", uid)
    assert caught.value.code == "invalid-claim-uid"


def test_the_longest_driver_name_leaves_room_for_an_api_servers_uid() -> None:
    name = temporary_file_name(spec_file_name("d" * 63, "c9f6f2f5-5c0e-4d60-8a86-8d1a6a4e0a59"), "01234567")
    assert len(name) <= 255
