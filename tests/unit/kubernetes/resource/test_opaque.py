from __future__ import annotations

import copy
import json

from hypothesis import given
from hypothesis import strategies as st

from dra_kit.kubernetes.resource import v1
from dra_kit.kubernetes.resource.validation.fields import validate_opaque
from dra_kit.kubernetes.values.json import RAW_OBJECT_MAX_LENGTH, RawObject, json_size

_OBJECTS = st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=5), max_size=4)


def _raw(text: str) -> RawObject:
    return RawObject(json.loads(text), text)


@given(_OBJECTS, st.sampled_from([None, 1, 4]))
def test_size_of_raw_object_is_size_of_text(value: dict[str, object], indent: int | None) -> None:
    text = json.dumps(value, indent=indent)

    assert json_size(_raw(text)) == len(text.encode())


@given(_OBJECTS)
def test_size_of_other_value_is_size_of_compact_json(value: dict[str, object]) -> None:
    assert json_size(value) == len(json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode())


def test_raw_objects_are_compared_by_text() -> None:
    assert _raw('{"a":1}') == _raw('{"a":1}')
    assert _raw('{"a":1}') != _raw('{"a": 1}')
    assert _raw('{"a":1}') != _raw('{"a":1.0}')
    assert _raw('{"a": 1}') == {"a": 1}
    assert copy.deepcopy(_raw('{"a": 1}')) == _raw('{"a": 1}')


def test_model_preserves_text() -> None:
    texts = ('{"a": 1}', '{"a":1}')

    spaced, compact = (v1.OpaqueDeviceConfiguration(driver="d", parameters=_raw(text)) for text in texts)

    assert json_size(spaced.parameters) == json_size(compact.parameters) + 1
    assert spaced != compact


def test_white_space_counts_towards_limit() -> None:
    limit = '{"x":' + " " * (RAW_OBJECT_MAX_LENGTH - 7) + "1}"

    def problems(text: str) -> list[str]:
        entry = v1.OpaqueDeviceConfiguration(driver="d.example", parameters=_raw(text))
        return [str(error) for error in validate_opaque(entry, "config[0]")]

    assert problems(limit) == []
    assert problems(f"{limit[:-1]} }}") == ["config[0].opaque.parameters: Too long: may not be more than 10240 bytes"]
