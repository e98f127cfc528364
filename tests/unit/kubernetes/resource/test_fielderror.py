from __future__ import annotations

import pytest

from dra_kit.kubernetes.resource import v1
from dra_kit.kubernetes.resource.field_errors import (
    FieldError,
    GoStruct,
    duplicate,
    forbidden,
    go_quote,
    invalid,
    not_found,
    required,
    too_long,
    too_many,
    unsupported,
)
from dra_kit.kubernetes.values.quantity import Quantity


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (invalid("a", "x", "bad"), 'a: Invalid value: "x": bad'),
        (invalid("a", None, "bad"), "a: Invalid value: null: bad"),
        (invalid("a", 3, "bad"), "a: Invalid value: 3: bad"),
        (invalid("a", Quantity("1024Mi"), "bad"), 'a: Invalid value: "1Gi": bad'),
        (required("a"), "a: Required value"),
        (required("a", "why"), "a: Required value: why"),
        (forbidden("a", "why"), "a: Forbidden: why"),
        (not_found("a", "x"), 'a: Not found: "x"'),
        (duplicate("a[1]", "x"), 'a[1]: Duplicate value: "x"'),
        (too_long("a", "xxx", 2), "a: Too long: may not be more than 2 bytes"),
        (too_many("a", 2, 1), "a: Too many: 2: must have at most 1 item"),
        (too_many("a", 9, 8), "a: Too many: 9: must have at most 8 items"),
        (
            unsupported("a", "z", ("y", "x")),
            'a: Unsupported value: "z": supported values: "x", "y"',
        ),
    ],
)
def test_message_equals_api_server(error: FieldError, text: str) -> None:
    assert str(error) == text


def test_objects_are_printed_as_sent() -> None:
    counters = {"b": v1.Counter(value=Quantity(1)), "a": v1.Counter(value=Quantity(2))}
    error = duplicate("a", v1.CounterSet(name="s", counters=counters))
    assert error.body == 'Duplicate value: {"name":"s","counters":{"a":{"value":"2"},"b":{"value":"1"}}}'


def test_go_struct_keeps_field_order() -> None:
    assert invalid("a", GoStruct(B=1, A=None), "bad").body == 'Invalid value: {"B":1,"A":null}: bad'


@pytest.mark.parametrize(
    ("text", "quoted"),
    [("a", '"a"'), ('a"\\', '"a\\"\\\\"'), ("\n\x00\x7f", '"\\n\\x00\\x7f"'), ("ä\u200b", '"ä\\u200b"')],
)
def test_go_quote_escapes_unprintable_characters(text: str, quoted: str) -> None:
    assert go_quote(text) == quoted
