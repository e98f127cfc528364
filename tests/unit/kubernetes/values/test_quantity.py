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
from hypothesis import assume, example, given
from hypothesis import strategies as st
from pydantic import BaseModel, TypeAdapter, ValidationError

from dra_kit.kubernetes.release import KubernetesVersion
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
def test_number_is_rounded_up_to_billionth(parts: tuple[str, str, str]) -> None:
    sign, number, suffix = parts
    written = Fraction("0" + number if number.startswith(".") else number) * SUFFIXES[suffix]
    rounded = ceil(written / NANO) * NANO
    if suffix.endswith("i"):
        rounded = min(rounded, Fraction(INT64_MAX))

    assert exact(Quantity("".join(parts))) == (-rounded if sign == "-" else rounded)


@given(quantities)
def test_canonical_form_round_trips(quantity: Quantity) -> None:
    assume(abs(exact(quantity)) < 1000 * 10**18 or quantity.format == "DecimalExponent")  # no suffix beyond E

    again = Quantity(str(quantity))

    assert again == quantity
    assert str(again) == str(quantity)


@given(st.lists(quantities, max_size=8))
def test_order_is_exact(some: list[Quantity]) -> None:
    assert [exact(q) for q in sorted(some)] == sorted(exact(q) for q in some)


@given(quantities, quantities)
def test_comparison_operators_are_exact(a: Quantity, b: Quantity) -> None:
    left, right = exact(a), exact(b)

    assert (a < b, a <= b, a == b, a >= b, a > b) == (
        left < right, left <= right, left == right, left >= right, left > right
    )  # fmt: skip


@given(quantities)
def test_equal_quantities_have_equal_hash(quantity: Quantity) -> None:
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
def test_sum_keeps_suffix_family_of_left_operand(a: Quantity, b: Quantity) -> None:
    expected = a.format if a.sign else b.format

    assert (a + b).format == expected
    assert (a - b).format == expected


@given(quantities)
def test_value_and_milli_value_round_up(quantity: Quantity) -> None:
    number = exact(quantity)
    assume(0 <= number < INT64_MAX * NANO)

    assert quantity.value == ceil(number)
    assert quantity.milli_value == ceil(number * 1000)


@given(quantities)
def test_sign(quantity: Quantity) -> None:
    assert quantity.sign == (exact(quantity) > 0) - (exact(quantity) < 0)


@given(st.text(max_size=12) | st.text("0123456789.eEinumkKMGTP+-", max_size=12))
def test_any_text_is_quantity_or_one_line_error(text: str) -> None:
    try:
        reason = str(Quantity(text))
    except ValueError as error:
        reason = str(error)

    assert reason
    assert "\n" not in reason


@given(st.integers(-(10**30), 10**30))
def test_whole_number_is_exact(number: int) -> None:
    assert Quantity(number).as_decimal == number


@pytest.mark.parametrize(
    ("text", "canonical"),
    [("1024Mi", "1Gi"), ("1.5Gi", "1536Mi"), ("0.1", "100m"), ("1000k", "1M"), ("0.5Ki", "512"), ("1e4", "10e3")],
)
def test_str_is_canonical_form(text: str, canonical: str) -> None:
    assert str(Quantity(text)) == canonical


def test_decimal_equals_its_text() -> None:
    assert str(Quantity(Decimal("1.5E+3"))) == "1500"


def test_quantity_of_quantity_keeps_text() -> None:
    assert str(Quantity(Quantity("+1"))) == "+1"


def test_as_int64_is_none_for_text_with_fraction() -> None:
    assert Quantity("2.0").as_int64 is None
    assert Quantity("2k").as_int64 == 2000


@pytest.mark.parametrize(
    ("text", "kind"),
    [("", "format"), ("1 Gi", "format"), ("1KB", "format"), ("1K", "suffix"), ("1e", "suffix"), ("Ei", "numeric")],
)
def test_error_has_kind_and_message(text: str, kind: str) -> None:
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
def test_error_suggests_quantity_for_bytes(text: str, remedy: str) -> None:
    with pytest.raises(InvalidQuantity) as caught:
        Quantity(text)

    assert str(caught.value).endswith(f"; {remedy}")


@pytest.mark.parametrize("value", [1.5, True, None, b"1", Decimal("NaN"), Decimal("Infinity")])
def test_other_types_are_rejected(value: object) -> None:
    with pytest.raises(ValueError, match="quantit"):
        Quantity(value)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "value",
    ["1e99999999999", 10**5000, Decimal("1e999999")],
    ids=["exponent-beyond-int32", "int", "decimal"],
)
def test_too_many_digits_are_rejected(value: str | int | Decimal) -> None:
    with pytest.raises(InvalidQuantity):
        Quantity(value)


def test_huge_exponent_is_fast() -> None:
    huge = Quantity("1e2000000000")

    assert huge > Quantity("9E")
    assert huge.value == 0
    assert hash(huge) == hash(Quantity("1e2000000000"))
    assert huge < huge + Quantity("1") < Quantity("1.0001e2000000000")


@pytest.mark.parametrize(
    ("text", "rounded"),
    [
        ("1" * 4000, "1" * 4000),
        ("1" * 4000 + "0001", "1" * 3999 + "2e4"),
        ("9" * 5000, "10e4999"),
        ("9" * 30 + "e999999", "9" * 30 + "e999999"),
        ("0." + "0" * 5000 + "1", "1n"),
    ],
    ids=["4000", "4004", "5000", "exponent", "fraction"],
)
def test_digits_after_the_4000th_are_rounded_up_before_1_38(text: str, rounded: str) -> None:
    assert Quantity(text, BEFORE) == Quantity(rounded, BEFORE)


huge_texts = st.builds(
    "{}{}e{}".format,
    st.sampled_from(["", "-"]),
    st.sampled_from(["0", "1", "17", "9" * 18, "1" * 29, "9" * 30, "7" * 4000, "9" * 5000, f"0.{'0' * 4500}1"]),
    st.sampled_from([-(2**31) + 1, -5000, -9, 0, 1, 17, 18, 19, 3999, 4000, 5001, 300_000, 2**31 - 1]),
)
sums = st.lists(st.one_of(huge_texts, texts.map("".join)), min_size=1, max_size=30)


def summed(version: KubernetesVersion, written: list[str], *, negative: bool) -> Quantity:
    total = Quantity(0, version)
    for text in written:
        try:
            amount = Quantity(text, version)
        except InvalidQuantity:  # the exponent of its canonical text has more than 32 bits
            continue
        Quantity(str(amount), version)
        total = total - amount if negative else total + amount
        total.compare(amount)
    return total


@given(st.sampled_from(["1.37", "1.38"]), sums, st.sampled_from(["0", "0Ki", "0.0", "0e30", "-0"]), st.booleans())
@example("1.37", ["0.999999999", *["9" * 4000] * 6], "0", False)
def test_zero_changes_no_sum(release: str, written: list[str], nothing: str, negative: bool) -> None:
    version = KubernetesVersion.parse(release)
    total, zero = summed(version, written, negative=negative), Quantity(nothing, version)

    assert total + zero == zero + total == total - zero == total
    assert str(total + zero) == str(total)


@given(st.sampled_from(["1.37", "1.38"]), sums, st.booleans())
def test_no_operation_with_accepted_quantities_fails_or_grows(release: str, written: list[str], negative: bool) -> None:
    total = summed(KubernetesVersion.parse(release), written, negative=negative)

    assert len(str(total)) < 4100
    assert total.amount.unscaled.bit_length() < 14_000
    assert total.is_whole is (total.amount.exponent >= 0 or total.as_decimal == int(total.as_decimal))
    assert -(2**63) <= total.value < 2**63


@pytest.mark.parametrize("text", ["9" * 5000 + "e2147483647", "1" + "0" * 40 + "e2147483647"])
def test_amount_whose_canonical_text_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(InvalidQuantity, match="is too large for a quantity"):
        Quantity(text, BEFORE)


def test_binary_sum_of_many_digits_has_a_power_of_ten_since_1_38() -> None:
    before = Quantity("1Gi", BEFORE) + Quantity("1e5000", BEFORE)
    since = Quantity("1Gi", SINCE) + Quantity("1e5000", SINCE)

    assert str(since) == f"1{'0' * 28}1e4971"
    assert len(str(before)) < 4100
    assert before.format == since.format == "BinarySI"
    assert Quantity("1e5000") < before < since


def test_value_is_immutable() -> None:
    quantity = Quantity("1")

    with pytest.raises(AttributeError):
        quantity.value = 2  # type: ignore[misc]
    with pytest.raises(AttributeError):
        quantity.unit = "Gi"  # type: ignore[attr-defined]


def test_quantity_is_not_equal_to_numbers_nor_added_to_them() -> None:
    quantity = Quantity("1")

    assert quantity != 1
    with pytest.raises(TypeError):
        quantity + 1  # type: ignore[operator]
    with pytest.raises(TypeError):
        quantity < None  # type: ignore[operator]  # noqa: B015


@given(quantities)
def test_copies_and_pickles_are_identical(quantity: Quantity) -> None:
    for again in (copy.deepcopy(quantity), pickle.loads(pickle.dumps(quantity))):  # noqa: S301
        assert again == quantity
        assert str(again) == str(quantity)
        assert (again.format, again.value, again.as_int64) == (quantity.format, quantity.value, quantity.as_int64)


class Memory(BaseModel):
    limit: Quantity


@pytest.mark.parametrize(("release", "number"), [("1.36", 0), ("1.37", 0), ("1.38", INT64_MAX)])
@pytest.mark.parametrize("given_", ["10E", "1e19", 1e19])
def test_model_has_the_limits_of_the_release_in_its_context(release: str, number: int, given_: str | float) -> None:
    memory = Memory.model_validate({"limit": given_}, context=KubernetesVersion.parse(release))

    assert memory.limit.value == number


def test_model_ignores_other_contexts() -> None:
    assert Memory.model_validate({"limit": "1Gi"}, context={"version": "1.38"}).limit == Quantity("1Gi")


@pytest.mark.parametrize(("document", "text"), [('"1024Mi"', "1Gi"), ("8", "8"), ("1.5", "1500m"), ('" 1Gi "', "1Gi")])
def test_model_accepts_json_strings_and_numbers(document: str, text: str) -> None:
    memory = Memory.model_validate_json(f'{{"limit": {document}}}')

    assert str(memory.limit) == text


def test_model_dumps_canonical_string() -> None:
    memory = Memory(limit=Quantity("1024Mi"))

    assert memory.model_dump() == {"limit": "1Gi"}
    assert memory.model_dump_json() == '{"limit":"1Gi"}'


@pytest.mark.parametrize("document", ["true", "null", '"much"', "[]", "{}"])
def test_model_rejects_invalid_quantity(document: str) -> None:
    with pytest.raises(ValidationError):
        Memory.model_validate_json(f'{{"limit": {document}}}')


def test_json_schema_of_quantity() -> None:
    adapter = TypeAdapter(Quantity)

    assert adapter.json_schema() == {"anyOf": [{"type": "string"}, {"type": "number"}]}
    assert adapter.json_schema(mode="serialization") == {"type": "string"}


def test_import_of_values_does_not_import_pydantic() -> None:
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
def test_approximate_float_equals_kubernetes(text: str, number: float) -> None:
    assert Quantity(text).approximate_float == number


def test_approximate_float_beyond_double_is_infinite() -> None:
    assert (Quantity("1e400") + Quantity("1")).approximate_float == math.inf
    assert (Quantity("-1e400") + Quantity("1")).approximate_float == -math.inf


@pytest.mark.parametrize(("left", "right", "order"), [("1Gi", "1024Mi", 0), ("1", "2", -1), ("1", "999m", 1)])
def test_compare(left: str, right: str, order: int) -> None:
    assert Quantity(left).compare(Quantity(right)) == order


def test_from_int64_keeps_int64_form() -> None:
    assert Quantity.from_int64(2**63 - 1).as_int64 == 2**63 - 1
    assert Quantity.from_int64(2**63 - 1) == Quantity(2**63 - 1)
    assert Quantity(2**63 - 1).as_int64 is None


@pytest.mark.parametrize(("number", "divisor"), [("1", "1e2147483647"), ("1e2147483647", "3")])
def test_remainder_of_too_many_digits_is_refused(number: str, divisor: str) -> None:
    with pytest.raises(ValueError, match="at most 4000 digits"):
        Quantity(number) % divisor


BEFORE, SINCE = KubernetesVersion(1, 37), KubernetesVersion(1, 38)


@pytest.mark.parametrize(
    ("text", "wrapped", "bounded"),
    [
        ("10E", (0, 0), (INT64_MAX, INT64_MAX)),
        ("9223372036854775808", (-INT64_MAX - 1, 0), (INT64_MAX, INT64_MAX)),
        ("-9223372036854775809", (-1, -1000), (-INT64_MAX - 1, -INT64_MAX - 1)),
        ("-0.0000000001", (1, 1), (-1, -1)),
        ("1e18", (10**18, 0), (10**18, INT64_MAX)),
    ],
)
def test_int64_values_stop_at_their_limits_since_1_38(
    text: str, wrapped: tuple[int, int], bounded: tuple[int, int]
) -> None:
    before, since = Quantity(text, BEFORE), Quantity(text, SINCE)

    assert (before.value, before.milli_value) == wrapped
    assert (since.value, since.milli_value) == bounded


@given(texts)
def test_number_has_29_digits_since_1_38(parts: tuple[str, str, str]) -> None:
    text = "".join(parts)
    before, since = exact(Quantity(text, BEFORE)), exact(Quantity(text, SINCE))

    assert abs(before) <= abs(since) <= abs(before) * (1 + Fraction(1, 10**28))
    if not parts[2].endswith("i"):
        assert len(str(abs(Quantity(text, SINCE).amount.unscaled)).rstrip("0")) <= 29


@given(texts)
def test_canonical_form_keeps_the_number_since_1_38(parts: tuple[str, str, str]) -> None:
    quantity = Quantity("".join(parts), SINCE)

    assert Quantity(str(quantity), SINCE) == quantity


def test_suffixes_end_with_a_power_of_ten_since_1_38() -> None:
    text = "1000000E"

    total = Quantity(text, SINCE) + Quantity("1", SINCE)

    assert [str(Quantity(text, version) + Quantity("0k", version)) for version in (BEFORE, SINCE)] == ["1", "1e24"]
    assert str(total) == "1000000000000000000000001"


@pytest.mark.parametrize(("version", "is_int64"), [(BEFORE, False), (SINCE, True)])
@pytest.mark.parametrize("text", ["9223372036854775807", "-9223372036854775808", "1000000000000000000"])
def test_int64_of_19_digits_is_an_int64_since_1_38(text: str, version: KubernetesVersion, is_int64: bool) -> None:
    assert (Quantity(text, version).as_int64 == int(text)) is is_int64


def test_sum_of_numbers_far_apart_is_rounded_since_1_38() -> None:
    large, small = "1e40", "1n"

    assert str(Quantity(large, SINCE) + Quantity(small, SINCE)) == "10000000000000000000000000000100e9"
    assert str(Quantity("1e2147483647", SINCE) + Quantity(small, SINCE)).endswith("e2147483616")
    assert str(Quantity(large, BEFORE) + Quantity(small, BEFORE)) == f"1{'0' * 48}1e-9"


def test_quantity_of_a_quantity_keeps_its_limits() -> None:
    assert Quantity(Quantity("10E", SINCE), BEFORE).value == INT64_MAX
    assert (Quantity("5E", SINCE) + Quantity("5E", SINCE)).value == INT64_MAX


@pytest.mark.parametrize(
    ("text", "whole"), [("3", True), ("3.5", False), ("500m", False), ("1e30", True), ("1e-3", False), ("16Ei", True)]
)
def test_whole_numbers(text: str, *, whole: bool) -> None:
    assert Quantity(text).is_whole is whole
