"""The schema table, and reading and writing by it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dra_kit.apiserver.api import KINDS
from dra_kit.kubernetes.resource.schema import protobuf
from dra_kit.kubernetes.resource.schema.types import (
    LIST,
    MAP,
    READERS,
    StrictDecoding,
    TypeMismatch,
    decode,
    item_type,
    prune,
    read_table,
    struct,
    written_zero,
)
from dra_kit.kubernetes.values.json import loads

TYPES = sorted({type_name for kind in KINDS for type_name in (*kind.types.values(), kind.stored_type)})
PLAIN: dict[str, st.SearchStrategy[Any]] = {
    "string": st.text("ab-", max_size=3),
    "bool": st.booleans(),
    "int32": st.integers(-(2**31), 2**31 - 1),
    "int64": st.integers(-(2**63), 2**63 - 1),
    "double": st.integers(-5, 5),
    "bytes": st.sampled_from(["", "YQ=="]),
    "Time": st.just("2026-01-02T03:04:05Z"),
    "MicroTime": st.just("2026-01-02T03:04:05.000006Z"),
    "Quantity": st.sampled_from(["0", "1Gi", "500m"]),
    "IntOrString": st.integers(0, 9) | st.just("25%"),
}


@st.composite
def values(draw: st.DrawFn, type_name: str, depth: int = 3) -> Any:
    """JSON of a type, with nulls and empty parts."""
    if type_name in PLAIN:
        return draw(PLAIN[type_name])
    if type_name.startswith(LIST):
        return draw(st.lists(values(item_type(type_name), depth - 1), max_size=2)) if depth > 0 else []
    if type_name.startswith(MAP):
        below = values(item_type(type_name), depth - 1)
        return draw(st.dictionaries(st.sampled_from("xy"), below, max_size=2)) if depth > 0 else {}
    known = struct(type_name)
    if known is None:
        return {}
    chosen = draw(st.lists(st.sampled_from(sorted(known.fields) or ["none"]), max_size=4, unique=True))
    return {
        name: draw(st.none() | values(known.fields[name].type, depth - 1))
        for name in chosen
        if name in known.fields and depth > 0
    }


@given(st.sampled_from(TYPES).flatmap(lambda name: st.tuples(st.just(name), values(name))))
def test_decoded_object_is_encoded_unchanged(case: tuple[str, Any]) -> None:
    type_name, value = case
    strictness = StrictDecoding()

    written = prune(decode(value, type_name, strictness), type_name)

    assert strictness.problems == []
    assert prune(decode(written, type_name), type_name) == written


@pytest.mark.parametrize("type_name", TYPES)
def test_every_type_that_a_kind_reaches_is_in_the_table(type_name: str) -> None:
    seen: set[str] = set()
    waiting = [type_name]
    while waiting:
        name = waiting.pop().removeprefix(LIST).removeprefix(MAP)
        if name not in seen and not name.startswith((LIST, MAP)):
            seen.add(name)
            known = struct(name)
            assert known is not None or name in READERS or name.startswith("apiextensions/")
            waiting += [entry.type for entry in known.fields.values()] if known else []
    written_zero(type_name)


@pytest.mark.parametrize("package", ["core/v1", "resource/v1", "resource/v1beta1", "apps/v1"])
def test_protobuf_numbers_are_unique_in_each_message(package: str) -> None:
    for kind in read_table(package.replace("/", ".")):
        name = f"{package}.{kind}"
        known = struct(name)
        tags = [entry.tag for entry in known.fields.values() if entry.tag] if known else []
        assert len(tags) == len(set(tags)), name


def test_unknown_and_duplicate_fields_are_noted_as_they_come() -> None:
    strictness = StrictDecoding()
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
        decode(value, type_name)


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
    assert decode(value, type_name) == kept


def varint(number: int) -> bytes:
    number &= (1 << 64) - 1
    out = b""
    while number > 0x7F:
        out += bytes([number & 0x7F | 0x80])
        number >>= 7
    return out + bytes([number])


def bytes_field(number: int, value: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(value)) + value


@given(st.text(max_size=5), st.integers(-(2**63), 2**63 - 1), st.dictionaries(st.text(max_size=3), st.text(max_size=3)))
@settings(deadline=None)
def test_protobuf_and_json_decode_to_the_same_object(name: str, generation: int, labels: dict[str, str]) -> None:
    pairs = [bytes_field(1, key.encode()) + bytes_field(2, value.encode()) for key, value in labels.items()]
    meta = bytes_field(1, name.encode()) + varint(7 << 3) + varint(generation)
    meta += b"".join(bytes_field(11, pair) for pair in pairs)
    body = (
        protobuf.MAGIC
        + bytes_field(1, bytes_field(1, b"v1") + bytes_field(2, b"Pod"))
        + bytes_field(2, bytes_field(1, meta))
    )

    api_version, kind, message = protobuf.unpack(body)

    assert (api_version, kind) == ("v1", "Pod")
    expected = {"name": name, "generation": generation} | ({"labels": labels} if labels else {})
    assert protobuf.decode_message(message, "core/v1.Pod") == {"metadata": expected}


@given(st.binary(max_size=40))
@settings(deadline=None)
def test_any_bytes_are_malformed_or_an_object(body: bytes) -> None:
    try:
        assert isinstance(protobuf.decode_message(body, "core/v1.Pod"), dict)
    except protobuf.MalformedProtobuf:
        pass
