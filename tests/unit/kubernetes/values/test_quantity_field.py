"""Quantities in configs: numbers with their original text."""

from __future__ import annotations

import json
import operator
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Annotated, Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

import dra_kit as dra


class Limits(BaseModel):
    model_config = ConfigDict(strict=True)

    memory: dra.QuantityField = dra.QuantityField("1Gi")


@pytest.mark.parametrize(
    ("written", "text"),
    [("1024Mi", "1024Mi"), (" 1.50Gi ", "1.50Gi"), ("0500m", "0500m"), (8, "8"), (1.5, "1.5"), ("1e3", "1e3")],
)
def test_text_is_preserved(written: Any, text: str) -> None:
    limits = Limits.model_validate_json(json.dumps({"memory": written}))
    assert limits.memory.text == text
    assert limits.model_dump() == limits.model_dump(mode="json") == {"memory": text}
    assert Limits.model_validate(limits.model_dump()).memory.text == text


def test_field_compares_by_number() -> None:
    field, same = dra.QuantityField("1024Mi"), dra.Quantity("1Gi")
    assert field == same
    assert hash(field) == hash(same)
    assert field <= same < dra.QuantityField("2Gi")
    assert field.value == 2**30
    assert (str(field), repr(field)) == ("1Gi", "QuantityField('1024Mi')")


def test_sum_of_fields_is_plain_quantity() -> None:
    for result in (dra.QuantityField("1Gi") + dra.QuantityField("1Gi"), dra.QuantityField("3Gi") - dra.Quantity("1Gi")):
        assert type(result) is dra.Quantity
        assert str(result) == "2Gi"


def test_copy_keeps_text() -> None:
    assert dra.QuantityField(dra.QuantityField("1024Mi")).text == "1024Mi"
    assert dra.QuantityField(dra.Quantity("1024Mi")).text == "1Gi"


@pytest.mark.parametrize("wrong", ["1 Gi", "", True, None, [1], "1Gib"])
def test_invalid_quantity_is_rejected(wrong: Any) -> None:
    with pytest.raises(ValidationError):
        Limits.model_validate({"memory": wrong})


def test_schema_equals_custom_resource() -> None:
    schema = Limits.model_json_schema()["properties"]["memory"]
    assert schema["x-kubernetes-int-or-string"] is True
    assert schema["anyOf"] == [{"type": "integer"}, {"type": "string"}]
    assert schema["default"] == "1Gi"


@pytest.mark.parametrize("written", ["1e4000", "1e2147483647", "-1e2147483647"])
def test_too_large_exponent_is_rejected(written: str) -> None:
    with pytest.raises(ValidationError, match="at most 4000 digits"):
        Limits(memory=written)  # type: ignore[arg-type]


def test_number_with_maximum_digits_is_usable() -> None:
    limits = Limits.model_validate({"memory": "1e3999"})
    assert len(str(int(limits.memory.as_decimal))) == 4000


class Limited(BaseModel):
    memory: dra.QuantityField = Field(dra.QuantityField("1Gi"), ge="1Gi", lt=dra.Quantity("8Gi"))
    lanes: dra.QuantityField | None = Field(None, gt=0, multiple_of=1)


@pytest.mark.parametrize("value", ["1Gi", "1024Mi", 2**30, "7.5Gi"])
def test_quantity_within_its_limits_is_accepted(value: object) -> None:
    assert Limited.model_validate({"memory": value}).memory == dra.Quantity(str(value))


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("memory", "1023Mi", "greater than or equal to 1Gi"),
        ("memory", "8Gi", "less than Quantity('8Gi')"),
        ("lanes", 0, "greater than 0"),
        ("lanes", -2, "greater than 0"),
        ("lanes", 1.5, "a multiple of 1"),
        ("lanes", "1500m", "a multiple of 1"),
    ],
)
def test_quantity_beyond_a_limit_is_rejected(field: str, value: object, message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Limited.model_validate({field: value})
    assert caught.value.errors()[0]["msg"] == f"Input should be {message}"


def test_limits_do_not_apply_to_null() -> None:
    assert Limited.model_validate({"lanes": None}).lanes is None


def test_model_with_limits_of_quantities_has_a_json_schema() -> None:
    assert Limited.model_json_schema()["properties"]["memory"]["x-kubernetes-int-or-string"] is True


SUFFIXES: dict[str, int | Fraction] = {
    "": 1, "m": Fraction(1, 1000), "k": 1000, "M": 10**6, "Ki": 2**10, "Mi": 2**20, "e3": 1000
}  # fmt: skip
NUMBERS = st.integers(-3000, 3000) | st.decimals(-3000, 3000, places=2).filter(Decimal.is_finite)


@st.composite
def quantities(draw: st.DrawFn) -> tuple[Any, Fraction]:
    """A quantity as an author or a user writes it, and its number."""
    number, suffix = draw(NUMBERS), draw(st.sampled_from(sorted(SUFFIXES)))
    text = f"{number}{suffix}"
    value = Fraction(number) * SUFFIXES[suffix]
    forms: list[Any] = [text, dra.Quantity(text), dra.QuantityField(text)]
    if value.denominator == 1:
        forms.append(int(value))
    return draw(st.sampled_from(forms)), value


CHECKS: dict[str, Callable[[Fraction, Fraction], bool]] = {
    "ge": operator.ge, "gt": operator.gt, "le": operator.le, "lt": operator.lt,
    "multiple_of": lambda value, limit: value % limit == 0,
}  # fmt: skip


@pytest.mark.parametrize("quantity", [dra.Quantity, dra.QuantityField])
@pytest.mark.parametrize("name", CHECKS)
@settings(max_examples=30)
@given(limit=quantities(), value=quantities())
def test_limits_are_exact(quantity: Any, name: str, limit: tuple[Any, Fraction], value: tuple[Any, Fraction]) -> None:
    assume(limit[1] != 0)
    adapter = TypeAdapter(Annotated[quantity, Field(**{name: limit[0]})])
    for written, number in (value, limit):
        try:
            accepted = adapter.validate_python(written)
        except ValidationError:
            assert not CHECKS[name](number, limit[1])
        else:
            assert CHECKS[name](number, limit[1])
            assert accepted == dra.Quantity(written)


def test_multiple_of_a_quantity_with_a_huge_exponent_is_rejected() -> None:
    adapter = TypeAdapter(Annotated[dra.Quantity, Field(multiple_of=3)])
    with pytest.raises(ValidationError, match="at most 4000 digits"):
        adapter.validate_python("1e2147483647")
