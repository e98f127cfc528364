from __future__ import annotations

import operator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_kit.diagnosis.explain.selectors import compared, reason_of, shorten
from dra_kit.diagnosis.explain.verdicts import Reason, ReasonKind
from dra_kit.kubernetes.cel.device import Device
from dra_kit.kubernetes.cel.explanation import SelectorExplainer, explain
from dra_kit.kubernetes.cel.program import compile_selector

A = 'device.attributes["d"]'
DEVICE = Device(
    driver="d",
    attributes={"cheese": "cheddar", "index": 3, "ecc": True, "version": {"version": "1.0.0"}},
    capacity={"memory": "40Gi"},
)


def why(condition: str, check: ReasonKind = ReasonKind.SELECTOR) -> Reason:
    [unmet] = SelectorExplainer(compile_selector(condition)).unmet(DEVICE)
    return reason_of(unmet, check, "class any" if check is ReasonKind.CLASS else "request r")


@pytest.mark.parametrize(
    ("condition", "short"),
    [
        (f'{A}.cheese == "mozzarella"', 'cheese == "mozzarella"'),
        (f'"mozzarella" == {A}.cheese', 'cheese == "mozzarella"'),
        (f"5 < {A}.index", "index > 5"),
        ('device.capacity["d"].memory.compareTo(quantity("80Gi")) >= 0', "memory >= 80Gi"),
        ('device.capacity["d"].memory.isGreaterThan(quantity("80Gi"))', "memory > 80Gi"),
        (f'{A}.version.isLessThan(semver("2.0.0"))', "version < 2.0.0"),
        (f"{A}.ecc", "ecc == true"),
        (f"!{A}.ecc", "ecc == false"),
        ('device.driver == "x"', 'driver == "x"'),
        (f'{A}.cheese.contains("mozz")', 'cheese.contains("mozz")'),
        (f'{A}.cheese == "a" ||\n  {A}.index == 1', 'cheese == "a" || index == 1'),
        (f"{A}.ecc && ({A}.index > 1 && {A}.index < 9)", "ecc == true && index > 1 && index < 9"),
        ("not CEL ((", "not CEL (("),
    ],
)
def test_a_condition_in_short(condition: str, short: str) -> None:
    assert shorten(condition) == short


def test_long_text_is_truncated() -> None:
    assert len(shorten(f'{A}.cheese == "{"x" * 500}"')) < 120


@pytest.mark.parametrize(
    ("condition", "text", "summary"),
    [
        (f'{A}.cheese == "mozzarella"', 'cheese is "cheddar", not "mozzarella"',
         ("wrong cheese", '"cheddar"', '≠ "mozzarella"')),
        ('device.capacity["d"].memory.compareTo(quantity("80Gi")) >= 0', "memory is 40Gi, must be >= 80Gi",
         ("wrong memory", "40Gi", "< 80Gi")),
        (f"{A}.slices > 3", "has no slices", ("without slices", "", "")),
        (f"{A}.cheese.size() > 9", 'not `cheese.size() > 9` (cheese is "cheddar", cheese.size() is 7)',
         ("not `cheese.size() > 9`", "", "")),
        (f"1 / ({A}.index - 3) == 1", "`1 / (index - 3) == 1` fails: division by zero",
         ("error in `1 / (index - 3) == 1`", "", "")),
    ],
)  # fmt: skip
def test_the_value_that_a_device_has_is_reported(condition: str, text: str, summary: tuple[str, str, str]) -> None:
    reason = why(condition)

    assert reason.text == text
    assert (reason.brief, reason.found, reason.wanted) == summary


def test_conditions_of_class_and_request_are_distinguished() -> None:
    reason = why(f'{A}.cheese == "mozzarella"', ReasonKind.CLASS)

    assert reason.text == 'cheese is "cheddar", the class requires "mozzarella"'
    assert reason.remedy is not None
    assert reason.remedy.text == 'without `cheese == "mozzarella"` (class any)'


def test_programs_get_the_condition_as_written_with_its_values() -> None:
    details = why(f'true && {A}.cheese == "mozzarella"').details

    assert details["condition"] == f'{A}.cheese == "mozzarella"'
    assert details["values"] == {f"{A}.cheese": '"cheddar"'}
    assert (details["line"], details["column"]) == (1, 9)


SIGNS = {"=": operator.eq, "≠": operator.ne, "<": operator.lt, "≤": operator.le, ">": operator.gt, "≥": operator.ge}


@given(
    found=st.integers(-3, 3),
    sign=st.sampled_from(["==", "!=", "<", "<=", ">", ">="]),
    constant=st.integers(-3, 3),
    mirrored=st.booleans(),
)
def test_the_operator_between_actual_and_expected_value_is_correct(
    found: int, sign: str, constant: int, *, mirrored: bool
) -> None:
    value = f"{A}.index"
    text = f"{constant} {sign} {value}" if mirrored else f"{value} {sign} {constant}"
    explainer = SelectorExplainer(compile_selector(text))

    for unmet in explainer.unmet(Device(driver="d", attributes={"index": found})):
        reason = reason_of(unmet, ReasonKind.SELECTOR, "request r")
        said, _, wanted = reason.wanted.partition(" ")
        assert SIGNS[said](int(reason.found), int(wanted))


@given(st.text(max_size=30))
def test_any_text_can_be_shortened(text: str) -> None:
    assert isinstance(shorten(text), str)
    compared(text)


@given(st.integers(0, 5), st.booleans(), st.integers(0, 5))
def test_unmet_conditions_are_those_of_the_whole_explanation(index: int, ecc: bool, bound: int) -> None:
    program = compile_selector(f"{A}.index > {bound} && {A}.ecc && {A}.missing == 1 && !{A}.ecc")
    device = Device(driver="d", attributes={"index": index, "ecc": ecc})

    assert SelectorExplainer(program).unmet(device) == explain(program, device).unmet
