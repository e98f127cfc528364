from __future__ import annotations

import pytest

from dra_kit.resource import fielderror, v1
from dra_kit.resource.fielderror import ErrorKind, FieldError, GoStruct
from dra_kit.values.quantity import Quantity


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (fielderror.invalid("a", "x", "bad"), 'a: Invalid value: "x": bad'),
        (fielderror.invalid("a", None, "bad"), "a: Invalid value: null: bad"),
        (fielderror.invalid("a", 3, "bad"), "a: Invalid value: 3: bad"),
        (fielderror.invalid("a", Quantity("1024Mi"), "bad"), 'a: Invalid value: "1Gi": bad'),
        (fielderror.required("a"), "a: Required value"),
        (fielderror.required("a", "why"), "a: Required value: why"),
        (fielderror.forbidden("a", "why"), "a: Forbidden: why"),
        (fielderror.not_found("a", "x"), 'a: Not found: "x"'),
        (fielderror.duplicate("a[1]", "x"), 'a[1]: Duplicate value: "x"'),
        (fielderror.too_long("a", "xxx", 2), "a: Too long: may not be more than 2 bytes"),
        (fielderror.too_many("a", 2, 1), "a: Too many: 2: must have at most 1 item"),
        (fielderror.too_many("a", 9, 8), "a: Too many: 9: must have at most 8 items"),
        (
            fielderror.unsupported("a", "z", ("y", "x")),
            'a: Unsupported value: "z": supported values: "x", "y"',
        ),
        (FieldError("a", ErrorKind.INTERNAL, detail="broken"), "a: Internal error: broken"),
    ],
)
def test_text_is_that_of_the_api_server(error: FieldError, text: str) -> None:
    assert str(error) == text


def test_objects_are_printed_as_they_are_sent() -> None:
    counters = {"b": v1.Counter(value=Quantity(1)), "a": v1.Counter(value=Quantity(2))}
    error = fielderror.duplicate("a", v1.CounterSet(name="s", counters=counters))
    assert error.body == 'Duplicate value: {"name":"s","counters":{"a":{"value":"2"},"b":{"value":"1"}}}'


def test_go_structs_keep_the_order_of_their_fields() -> None:
    assert fielderror.invalid("a", GoStruct(B=1, A=None), "bad").body == 'Invalid value: {"B":1,"A":null}: bad'


@pytest.mark.parametrize(
    ("text", "quoted"),
    [("a", '"a"'), ('a"\\', '"a\\"\\\\"'), ("\n\x00\x7f", '"\\n\\x00\\x7f"'), ("ä\u200b", '"ä\\u200b"')],
)
def test_quoting_escapes_what_cannot_be_printed(text: str, quoted: str) -> None:
    assert fielderror.quote(text) == quoted
