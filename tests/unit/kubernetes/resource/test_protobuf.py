"""Protobuf, compared with what Go wrote (tests/data/go-objects) and with JSON."""

from __future__ import annotations

import base64
import gzip
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dra_kit.apiserver.api import KINDS
from dra_kit.kubernetes.release import DEFAULT
from dra_kit.kubernetes.resource.schema import protobuf
from dra_kit.kubernetes.resource.schema.types import StrictDecoding, decode, prune
from tests.support.typed_values import values

TYPES = {(kind.api_version(version), kind.kind): name for kind in KINDS for version, name in kind.types.items()} | {
    ("v1", "Binding"): "core/v1.Binding",
    ("v1", "DeleteOptions"): "meta/v1.DeleteOptions",
    ("policy/v1", "Eviction"): "policy/v1.Eviction",
    ("autoscaling/v1", "Scale"): "autoscaling/v1.Scale",
    ("authentication.k8s.io/v1", "TokenRequest"): "authentication/v1.TokenRequest",
    ("authentication.k8s.io/v1", "TokenReview"): "authentication/v1.TokenReview",
    ("authorization.k8s.io/v1", "SubjectAccessReview"): "authorization/v1.SubjectAccessReview",
    ("authorization.k8s.io/v1", "SelfSubjectAccessReview"): "authorization/v1.SelfSubjectAccessReview",
    ("authorization.k8s.io/v1", "SelfSubjectRulesReview"): "authorization/v1.SelfSubjectRulesReview",
}
FORMS = ("empty", "zeros", "filled")
OBJECTS = Path(__file__).parents[3] / "data/go-objects/objects.jsonl.gz"


@cache
def written_by_go() -> dict[tuple[str, str, str], tuple[Any, bytes]]:
    """JSON and protobuf of an object, by API version, kind and form."""
    entries = map(json.loads, gzip.decompress(OBJECTS.read_bytes()).splitlines())
    return {
        (entry["apiVersion"], entry["kind"], entry["form"]): (entry["json"], base64.b64decode(entry["protobuf"]))
        for entry in entries
    }


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("api_version", "kind"), TYPES)
def test_protobuf_of_go_decodes_to_the_json_of_go(api_version: str, kind: str, form: str) -> None:
    type_name = TYPES[api_version, kind]
    expected, body = written_by_go()[api_version, kind, form]

    found_version, found_kind, message = protobuf.unpack(body)
    decoded = {"kind": found_kind, "apiVersion": found_version} | protobuf.decode_message(message, type_name)

    assert prune(decoded, type_name, stored=False, version=DEFAULT) == expected


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("api_version", "kind"), TYPES)
def test_json_of_go_has_no_field_that_the_table_lacks(api_version: str, kind: str, form: str) -> None:
    strictness = StrictDecoding(DEFAULT)

    decode(written_by_go()[api_version, kind, form][0], TYPES[api_version, kind], strictness)

    assert strictness.problems == []


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("api_version", "kind"), TYPES)
def test_object_is_encoded_as_go_does(api_version: str, kind: str, form: str) -> None:
    type_name = TYPES[api_version, kind]
    _, body = written_by_go()[api_version, kind, form]
    decoded = prune(
        protobuf.decode_message(protobuf.unpack(body)[2], type_name), type_name, stored=False, version=DEFAULT
    )

    assert protobuf.pack(api_version, kind, protobuf.encode_message(decoded, type_name)) == body


@given(st.sampled_from(sorted(TYPES.values())).flatmap(lambda name: st.tuples(st.just(name), values(name))))
def test_protobuf_and_json_of_any_object_decode_alike(case: tuple[str, Any]) -> None:
    type_name, value = case
    value = {name: item for name, item in value.items() if name not in {"apiVersion", "kind"}}  # of the envelope
    from_json = prune(decode(value, type_name, DEFAULT), type_name, version=DEFAULT)

    decoded = protobuf.decode_message(protobuf.encode_message(from_json, type_name), type_name)

    assert prune(decode(decoded, type_name, DEFAULT), type_name, version=DEFAULT) == from_json


def test_opaque_object_keeps_its_text() -> None:
    text = b'{ "note": "this \\u0026 that", "note": 1 }'
    message = bytes([1 << 3 | 2, len(text)]) + text

    decoded = protobuf.decode_message(message, "RawExtension")

    assert decoded.text == text.decode()


@given(st.binary(max_size=40))
@settings(deadline=None)
def test_any_bytes_are_malformed_or_an_object(body: bytes) -> None:
    try:
        assert isinstance(protobuf.decode_message(body, "core/v1.Pod"), dict)
    except protobuf.MalformedProtobuf:
        pass
