"""The schema table, and reading and writing by it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_kit.apiserver.api import KINDS
from dra_kit.kubernetes.release import DEFAULT, NEWEST
from dra_kit.kubernetes.resource.schema.types import (
    LIST,
    MAP,
    SCALARS,
    StrictDecoding,
    TypeMismatch,
    decode,
    prune,
    reached_types,
    read_table,
    struct,
    written_zero,
)
from dra_kit.kubernetes.values.json import loads
from tests.support.typed_values import values

TYPES = sorted({type_name for kind in KINDS for type_name in (*kind.types.values(), kind.stored_type)})


@given(st.sampled_from(TYPES).flatmap(lambda name: st.tuples(st.just(name), values(name))))
def test_decoded_object_is_encoded_unchanged(case: tuple[str, Any]) -> None:
    type_name, value = case
    strictness = StrictDecoding(DEFAULT)

    written = prune(decode(value, type_name, strictness), type_name, version=DEFAULT)

    assert strictness.problems == []
    assert prune(decode(written, type_name, DEFAULT), type_name, version=DEFAULT) == written


@pytest.mark.parametrize("type_name", TYPES)
def test_every_type_that_a_kind_reaches_is_in_the_table(type_name: str) -> None:
    seen: set[str] = set()
    waiting = [type_name]
    while waiting:
        name = waiting.pop().removeprefix(LIST).removeprefix(MAP)
        if name not in seen and not name.startswith((LIST, MAP)):
            seen.add(name)
            known = struct(name, NEWEST)
            assert known is not None or name in SCALARS or name.startswith("apiextensions/")
            waiting += [entry.type for entry in known.fields.values()] if known else []
    written_zero(type_name, DEFAULT)


@pytest.mark.parametrize("package", ["core/v1", "resource/v1", "resource/v1beta1", "apps/v1"])
def test_protobuf_numbers_are_unique_in_each_message(package: str) -> None:
    for kind in read_table(package.replace("/", ".")):
        name = f"{package}.{kind}"
        known = struct(name, NEWEST)
        tags = [entry.tag for entry in known.fields.values() if entry.tag] if known else []
        assert len(tags) == len(set(tags)), name


@pytest.mark.parametrize("type_name", TYPES)
def test_every_field_of_every_type_has_a_protobuf_number(type_name: str) -> None:
    numberless = {"apiVersion", "kind"}  # in the envelope
    for name in reached_types(type_name):
        for field, entry in (known.fields if (known := struct(name, NEWEST)) else {}).items():
            assert entry.tag or field in numberless, f"{name}.{field}"


def test_zero_value_of_a_field_that_is_not_a_pointer_counts_as_absent() -> None:
    zeros = {"nodeName": "", "hostNetwork": False, "hostname": "", "setHostnameAsFQDN": False}

    assert decode({"spec": zeros}, "core/v1.Pod", DEFAULT)["spec"] == {"setHostnameAsFQDN": False}


def test_unknown_and_duplicate_fields_are_noted_as_they_come() -> None:
    strictness = StrictDecoding(DEFAULT)
    text = '{"top": 1, "spec": {"nodeName": "a", "nodeName": "b", "inner": 1}}'

    decode(loads(text), "core/v1.Pod", strictness)

    assert strictness.problems == [
        'unknown field "top"', 'unknown field "spec.inner"', 'duplicate field "spec.nodeName"',
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("type_name", "value"),
    [
        ("core/v1.Pod", {"metadata": {"name": 5}}),
        ("core/v1.Pod", {"spec": []}),
        ("int32", 2**31),
        ("int64", 1.0),
        ("bool", "true"),
        ("Time", "2026-01-02 03:04:05"),
        ("Time", "2026-01-02t03:04:05z"),
        ("Time", "2026-02-30T03:04:05Z"),
        ("MicroTime", "2026-01-02T03:04:05Z"),
        ("Quantity", "1Gix"),
        ("bytes", "%"),
        ("[]string", {"a": "b"}),
        ("map[string]string", ["a"]),
    ],
)
def test_value_of_another_type_is_rejected(type_name: str, value: Any) -> None:
    with pytest.raises(TypeMismatch):
        decode(value, type_name, DEFAULT)


@pytest.mark.parametrize(
    ("type_name", "value", "kept"),
    [
        ("Time", "2026-01-02T05:04:05.9+02:00", "2026-01-02T03:04:05Z"),
        ("Quantity", "1024Mi", "1Gi"),
        ("Quantity", 0.5, "500m"),
        ("[]string", ["a", None], ["a", ""]),
    ],
)
def test_scalars_are_stored_in_canonical_form(type_name: str, value: Any, kept: Any) -> None:
    assert decode(value, type_name, DEFAULT) == kept
