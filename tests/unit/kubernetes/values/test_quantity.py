from __future__ import annotations

import copy
import math
import pickle
import subprocess
import sys
from decimal import Decimal
from fractions import Fraction
from math import ceil

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pydantic import BaseModel, TypeAdapter, ValidationError

from dra_kit.kubernetes.values.quantity import InvalidQuantity, Quantity

INT64_MAX = 2**63 - 1
NANO = Fraction(1, 10**9)

SUFFIXES: dict[str, Fraction] = {
    **{suffix: Fraction(10) ** (3 * power) for power, suffix in enumerate(["n", "u", "m", "", "k", "M", "G"], -3)},
    "T": Fraction(10**12),
    "P": Fraction(10**15),
    "E": Fraction(10**18),
    **{suffix: Fraction(1024**power) for power, suffix in enumerate(["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"], 1)},
    **{f"e{power}": Fraction(10) ** power for power in range(-12, 22)},
    **{f"E+{power}": Fraction(10**power) for power in range(4)},
}

digits = st.text("0123456789", min_size=1, max_size=24)
numbers = st.one_of(digits, st.builds("{}.{}".format, digits, digits), st.builds(".{}".format, digits))
texts = st.tuples(st.sampled_from(["", "+", "-"]), numbers, st.sampled_from(sorted(SUFFIXES)))
quantities = texts.map("".join).map(Quantity)


def exact(quantity: Quantity) -> Fraction:
    return Fraction(quantity.as_decimal)


@given(texts)
def test_the_number_read_is_the_number_written_rounded_up_to_a_billionth(parts: tuple[str, str, str]) -> None:
    sign, number, suffix = parts
    written = Fraction("0" + number if number.startswith(".") else number) * SUFFIXES[suffix]
    rounded = ceil(written / NANO) * NANO
    if suffix.endswith("i"):
        rounded = min(rounded, Fraction(INT64_MAX))

    assert exact(Quantity("".join(parts))) == (-rounded if sign == "-" else rounded)


@given(quantities)
def test_the_canonical_form_is_read_as_the_same_number_and_is_its_own_canonical_form(quantity: Quantity) -> None:
    assume(abs(exact(quantity)) < 1000 * 10**18 or quantity.format == "DecimalExponent")  # no suffix beyond E

    again = Quantity(str(quantity))

    assert again == quantity
    assert str(again) == str(quantity)


@given(st.lists(quantities, max_size=8))
def test_the_order_is_that_of_the_exact_numbers(some: list[Quantity]) -> None:
    assert [exact(q) for q in sorted(some)] == sorted(exact(q) for q in some)


@given(quantities, quantities)
def test_comparison_operators_agree_with_the_exact_numbers(a: Quantity, b: Quantity) -> None:
    left, right = exact(a), exact(b)

    assert (a < b, a <= b, a == b, a >= b, a > b) == (
        left < right, left <= right, left == right, left >= right, left > right
    )  # fmt: skip


@given(quantities)
def test_equal_quantities_have_one_hash_however_they_are_written(quantity: Quantity) -> None:
    other = Quantity(quantity.as_decimal)

    assert other == quantity
    assert hash(other) == hash(quantity)


@given(quantities, quantities)
def test_addition_is_exact_and_commutes(a: Quantity, b: Quantity) -> None:
    assert exact(a + b) == exact(a) + exact(b)
    assert a + b == b + a


@given(quantities, quantities)
def test_subtraction_undoes_addition(a: Quantity, b: Quantity) -> None:
    assert (a + b) - b == a
    assert exact(a - b) == exact(a) - exact(b)


@given(quantities, quantities)
def test_a_sum_keeps_the_suffixes_of_its_left_operand_unless_that_is_zero(a: Quantity, b: Quantity) -> None:
    expected = a.format if a.sign else b.format

    assert (a + b).format == expected
    assert (a - b).format == expected


@given(quantities)
def test_value_and_milli_value_round_up_where_an_int64_of_billionths_holds_the_number(quantity: Quantity) -> None:
    number = exact(quantity)
    assume(0 <= number < INT64_MAX * NANO)

    assert quantity.value == ceil(number)
    assert quantity.milli_value == ceil(number * 1000)


@given(quantities)
def test_sign_is_that_of_the_number(quantity: Quantity) -> None:
    assert quantity.sign == (exact(quantity) > 0) - (exact(quantity) < 0)


@given(st.text(max_size=12) | st.text("0123456789.eEinumkKMGTP+-", max_size=12))
def test_any_text_is_a_quantity_or_a_value_error_of_one_line(text: str) -> None:
    try:
        reason = str(Quantity(text))
    except ValueError as error:
        reason = str(error)

    assert reason
    assert "\n" not in reason


@given(st.integers(-(10**30), 10**30))
def test_a_whole_number_is_taken_exactly(number: int) -> None:
    assert Quantity(number).as_decimal == number


@pytest.mark.parametrize(
    ("text", "canonical"),
    [("1024Mi", "1Gi"), ("1.5Gi", "1536Mi"), ("0.1", "100m"), ("1000k", "1M"), ("0.5Ki", "512"), ("1e4", "10e3")],
)
def test_str_is_the_canonical_form(text: str, canonical: str) -> None:
    assert str(Quantity(text)) == canonical


def test_a_decimal_is_read_like_its_plain_text() -> None:
    assert str(Quantity(Decimal("1.5E+3"))) == "1500"


def test_a_quantity_of_a_quantity_is_written_alike() -> None:
    assert str(Quantity(Quantity("+1"))) == "+1"


def test_as_int64_is_none_for_a_whole_number_written_with_a_fraction() -> None:
    assert Quantity("2.0").as_int64 is None
    assert Quantity("2k").as_int64 == 2000


@pytest.mark.parametrize(
    ("text", "kind"),
    [("", "format"), ("1 Gi", "format"), ("1KB", "format"), ("1K", "suffix"), ("1e", "suffix"), ("Ei", "numeric")],
)
def test_the_error_tells_what_is_wrong(text: str, kind: str) -> None:
    with pytest.raises(InvalidQuantity) as caught:
        Quantity(text)

    assert caught.value.kind == kind
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("16GB", "write 16G or 16Gi"), ("16 gb", "write 16G or 16Gi"), ("16GiB", "write 16Gi"),
        ("16g", "write 16G or 16Gi"), ("1.5 Gi", "write 1.5Gi"), ("512KB", "write 512k or 512Ki"),
        ("1K", "write 1k or 1Ki"),
    ],
)  # fmt: skip
def test_an_amount_of_bytes_as_people_write_it_is_told_as_a_quantity(text: str, remedy: str) -> None:
    with pytest.raises(InvalidQuantity) as caught:
        Quantity(text)

    assert str(caught.value).endswith(f"; {remedy}")


@pytest.mark.parametrize("value", [1.5, True, None, b"1", Decimal("NaN"), Decimal("Infinity")])
def test_other_values_are_refused(value: object) -> None:
    with pytest.raises(ValueError, match="quantit"):
        Quantity(value)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "value",
    ["9" * 5000, "9" * 30 + "e999999", "1e99999999999", 10**5000, Decimal("1e999999")],
    ids=["digits", "exponent", "exponent-beyond-int32", "int", "decimal"],
)
def test_numbers_too_long_to_compute_with_are_refused(value: str | int | Decimal) -> None:
    with pytest.raises(InvalidQuantity):
        Quantity(value)


def test_a_huge_exponent_costs_nothing_until_it_is_added() -> None:
    huge = Quantity("1e2000000000")

    assert huge > Quantity("9E")
    assert huge.value == 0
    assert hash(huge) == hash(Quantity("1e2000000000"))
    with pytest.raises(OverflowError):
        huge + Quantity("1")


def test_it_cannot_be_changed() -> None:
    quantity = Quantity("1")

    with pytest.raises(AttributeError):
        quantity.value = 2  # type: ignore[misc]
    with pytest.raises(AttributeError):
        quantity.unit = "Gi"  # type: ignore[attr-defined]


def test_it_does_not_mix_with_plain_numbers() -> None:
    quantity = Quantity("1")

    assert quantity != 1
    with pytest.raises(TypeError):
        quantity + 1  # type: ignore[operator]
    with pytest.raises(TypeError):
        quantity < 1  # type: ignore[operator]  # noqa: B015


@given(quantities)
def test_copies_and_pickles_are_the_same_in_every_respect(quantity: Quantity) -> None:
    for again in (copy.deepcopy(quantity), pickle.loads(pickle.dumps(quantity))):  # noqa: S301
        assert again == quantity
        assert str(again) == str(quantity)
        assert (again.format, again.value, again.as_int64) == (quantity.format, quantity.value, quantity.as_int64)


class Memory(BaseModel):
    limit: Quantity


@pytest.mark.parametrize(("document", "text"), [('"1024Mi"', "1Gi"), ("8", "8"), ("1.5", "1500m"), ('" 1Gi "', "1Gi")])
def test_a_model_reads_json_strings_and_numbers(document: str, text: str) -> None:
    memory = Memory.model_validate_json(f'{{"limit": {document}}}')

    assert str(memory.limit) == text


def test_a_model_dumps_the_canonical_string_in_every_mode() -> None:
    memory = Memory(limit=Quantity("1024Mi"))

    assert memory.model_dump() == {"limit": "1Gi"}
    assert memory.model_dump_json() == '{"limit":"1Gi"}'


@pytest.mark.parametrize("document", ["true", "null", '"much"', "[]", "{}"])
def test_a_model_refuses_what_is_no_quantity(document: str) -> None:
    with pytest.raises(ValidationError):
        Memory.model_validate_json(f'{{"limit": {document}}}')


def test_the_json_schema_tells_strings_and_numbers_in_and_strings_out() -> None:
    adapter = TypeAdapter(Quantity)

    assert adapter.json_schema() == {"anyOf": [{"type": "string"}, {"type": "number"}]}
    assert adapter.json_schema(mode="serialization") == {"type": "string"}


def test_importing_the_values_does_not_import_pydantic() -> None:
    modules = "dra_kit.kubernetes.values.quantity, dra_kit.kubernetes.values.semver"
    code = f"import sys, {modules}; sys.exit('pydantic' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1500m", 1.5),
        ("80Gi", 80.0 * 2**30),
        ("-1", -1.0),
        ("0", 0.0),
        ("5u", 4.9999999999999996e-06),
        ("1e400", math.inf),
    ],
)
def test_the_approximate_float_has_the_rounding_errors_of_kubernetes(text: str, number: float) -> None:
    assert Quantity(text).approximate_float == number


def test_the_approximate_float_of_a_number_beyond_doubles_is_infinite() -> None:
    assert (Quantity("1e400") + Quantity("1")).approximate_float == math.inf
    assert (Quantity("-1e400") + Quantity("1")).approximate_float == -math.inf


@pytest.mark.parametrize(("left", "right", "order"), [("1Gi", "1024Mi", 0), ("1", "2", -1), ("1", "999m", 1)])
def test_compare_tells_the_order(left: str, right: str, order: int) -> None:
    assert Quantity(left).compare(Quantity(right)) == order


def test_a_quantity_of_an_int64_stays_one_whatever_its_size() -> None:
    assert Quantity.from_int64(2**63 - 1).as_int64 == 2**63 - 1
    assert Quantity.from_int64(2**63 - 1) == Quantity(2**63 - 1)
    assert Quantity(2**63 - 1).as_int64 is None
