"""The catalogue of mistakes in expressions: each is found, and its remedy is correct."""

from __future__ import annotations

import re
import textwrap

import pytest

from dra_kit.diagnosis.lint.findings import GROUPS
from dra_kit.diagnosis.selector_mistakes.catalogue import mistakes
from dra_kit.diagnosis.selector_mistakes.expression import compiled
from dra_kit.kubernetes.cel.environment import new
from dra_kit.kubernetes.cel.program import compile_selector
from dra_kit.kubernetes.release import Release
from dra_kit.kubernetes.resource.validation.claims import environment
from tests.unit.diagnosis.lint.texts import DRIVER, GUARD, A, C, claim, device_class, found, underlined

CASES = [
    ("cel-compile", f'{A}.model == "H200', '"', f'{A}.model == "H200"'),
    ("cel-cost", f"[{'1,' * 200}1].all(a, [{'1,' * 200}1].all(b, [{'1,' * 99}1].all(c, a + b > c)))", "[", "true"),
    ("single-equals", f'{A}.model = "a=b"', "=", f'{A}.model == "a=b"'),
    ("single-equals", f'{A}.model === "H200"', "===", f'{A}.model == "H200"'),
    ("single-equals", f'{A}.model =~ "H.*"', "=~", f'{A}.model.matches("H.*")'),
    ("word-operator", f"{A}.mig and {A}.ecc", "and", f"{A}.mig && {A}.ecc"),
    ("word-operator", f"not {A}.mig", "not", f"!{A}.mig"),
    ("python-constant", f"{A}.mig == True", "True", f"{A}.mig == true"),
    ("missing-device", 'attributes["gpu.example.com"].mig', "attributes", f"{A}.mig"),
    ("missing-device", 'driver == "gpu.example.com"', "driver", GUARD),
    ("unknown-device-field", 'device.model == "H200"', "model", f'{A}.model == "H200"'),
    ("unknown-function", f'{A}.model.startswith("H")', "startswith", f'{A}.model.startsWith("H")'),
    ("unknown-function", f"len({A}.model) == 4", "len", f"size({A}.model) == 4"),
    ("hyphenated-name", f'{A}.gpu-model == "H200"', "gpu-model", f'{A}.gpu_model == "H200"'),
    ("attribute-without-domain", 'device.attributes["model"] == "H200"', '"model"', f'{A}.model == "H200"'),
    (
        "attribute-without-domain",
        f'{GUARD} && device.capacity["memory"].compareTo(quantity("1Gi")) >= 0',
        '"memory"',
        f'{GUARD} && {C}.memory.compareTo(quantity("1Gi")) >= 0',
    ),
    ("domain-with-name", 'device.attributes["gpu.example.com/model"].x', '"gpu.example.com/model"', f"{A}.model"),
    ("quantity-comparison", f"{C}.memory >= 80", ">=", f'{C}.memory.compareTo(quantity("80")) >= 0'),
    ("quantity-comparison", f'{C}.memory == "80Gi"', "==", f'{C}.memory == quantity("80Gi")'),
    ("quantity-comparison", f'quantity("80Gi") < {C}.memory', "<", f'{C}.memory.isGreaterThan(quantity("80Gi"))'),
    ("quantity-argument", f'{C}.memory.isLessThan("80Gi")', '"80Gi"', f'{C}.memory.isLessThan(quantity("80Gi"))'),
    ("quantity-argument", f"{C}.memory == quantity(80)", "80", f'{C}.memory == quantity("80")'),
    (
        "attribute-quantity",
        f'{A}.memory >= quantity("40Gi")',
        f'{A}.memory >= quantity("40Gi")',
        f'{C}.memory.compareTo(quantity("40Gi")) >= 0',
    ),
    (
        "attribute-quantity",
        f'{A}.memory.compareTo(quantity("40Gi")) >= 0',
        f"{A}.memory.compareTo",
        f'{C}.memory.compareTo(quantity("40Gi")) >= 0',
    ),
    (
        "quantity-as-text",
        f'{A}.memory >= "40Gi"',
        f'{A}.memory >= "40Gi"',
        f'quantity({A}.memory).compareTo(quantity("40Gi")) >= 0',
    ),
    ("attribute-quantity", f"{A}.memory.asInteger() > 4", f"{A}.memory.asInteger", f"{C}.memory.asInteger() > 4"),
    (
        "attribute-quantity",
        f'quantity("40Gi").compareTo({A}.memory) <= 0',
        "quantity",
        f'quantity("40Gi").compareTo({C}.memory) <= 0',
    ),
    ("attribute-field", f"{A}.?rdma.bool.orValue(false)", "bool", f"{A}.?rdma.orValue(false)"),
    ("domain-with-name", f'{A}["{DRIVER}/model"] == "a"', f'"{DRIVER}/model"', f'{A}.model == "a"'),
    ("quantity-argument", f"{C}.memory >= 40Gi", "40Gi", f'{C}.memory.compareTo(quantity("40Gi")) >= 0'),
    ("attribute-field", f"{A}.rdma.BoolValue", "BoolValue", f"{A}.rdma == true"),
    ("attribute-field", f"{A}.rdma.bool == true", "bool", f"{A}.rdma == true"),
    ("attribute-field", f'has({A}.rdma.string) && {A}.rdma == "a"', "string", f'has({A}.rdma) && {A}.rdma == "a"'),
    ("attribute-field", f'{C}.memory.value == quantity("1Gi")', "value", f'{C}.memory == quantity("1Gi")'),
    (
        "attribute-without-domain",
        'device.attributes["model"].string == "H200"',
        '"model"',
        f'{A}.model == "H200"',
    ),
    (
        "domain-with-name",
        f'device.attributes["{DRIVER}/model"].string == "a"',
        f'"{DRIVER}/model"',
        f'{A}.model == "a"',
    ),
    ("version-comparison", f'{A}.v > semver("1.2.3")', ">", f'{A}.v.isGreaterThan(semver("1.2.3"))'),
    ("version-comparison", f'{A}.v.isLessThan("1.2.3")', '"1.2.3"', f'{A}.v.isLessThan(semver("1.2.3"))'),
    ("version-as-text", f'{A}.v >= "1.2.3"', ">=", f'{A}.v.compareTo(semver("1.2.3")) >= 0'),
    ("sign-method", f"{C}.memory.sign() == 1", "sign", f"sign({C}.memory) == 1"),
    ("list-attribute", f'{A}.links.includes("a")', "includes", f'{A}.links.contains("a")'),
    ("list-attribute", f'{A}.links.exists(x, x == "a")', "(", f'{A}.links == "a"'),
    ("invalid-constant", f'{A}.v == semver("1.2")', '"1.2"', f'{A}.v == semver("1.2.0")'),
    ("invalid-constant", f'{C}.memory == quantity("80 GB")', '"80 GB"', f'{C}.memory == quantity("80G")'),
]


def ids(expression: str, gates: Release | None = None) -> set[str]:
    return {mistake.rule for mistake in mistakes(compiled(expression, environment(gates or Release.of())))}


def help_for(expression: str) -> str:
    """The remedy for its only mistake."""
    (mistake,) = mistakes(compiled(expression, environment(Release.of())))
    return mistake.help


@pytest.mark.parametrize(("rule", "wrong", "where", "right"), CASES, ids=[f"{one[0]}-{one[1]:.40}" for one in CASES])
def test_a_mistake_is_found_with_position_and_remedy(rule: str, wrong: str, where: str, right: str) -> None:
    findings = [finding for finding in found(device_class(wrong)) if finding.rule != "foreign-devices"]
    assert {finding.rule for finding in findings} == {rule}
    assert underlined(findings[0]).startswith(where)
    assert ids(right) == set()
    compile_selector(right, environment=new())


@pytest.mark.parametrize(
    ("expression", "help_"),
    [
        (f'{GUARD} && device.attributes["model"] == "H200"', f"write {A}.model"),
        (f'{GUARD} && device.capacity["memory"].isLessThan(quantity("1Gi"))', f"write {C}.memory"),
        ('device.attributes["model"] == "H200"', 'write device.attributes["<driver>"].model'),
        (
            f'{A}.memory.isGreaterThan(quantity("40Gi"))',
            f'if memory is a capacity, write {C}.memory.isGreaterThan(quantity("40Gi"))',
        ),
        (f'{A}.memory == quantity("40Gi")', f'if memory is a capacity, write {C}.memory == quantity("40Gi")'),
        (f'device.attributes["{DRIVER}/rdma"].bool', f"write {A}.rdma"),
    ],
)
def test_a_remedy_names_the_driver_that_the_expression_names(expression: str, help_: str) -> None:
    assert help_for(expression) == help_


@pytest.mark.parametrize(
    ("written", "expected"),
    [("16GB", '"16G" or "16Gi"'), ("16 KB", '"16k" or "16Ki"'), ("80 GiB", '"80Gi"'), ("many", '"80Gi"')],
)
def test_a_quantity_in_bytes_may_be_of_a_thousand_or_of_1024(written: str, expected: str) -> None:
    assert help_for(f'{C}.memory == quantity("{written}")') == f"write a number and a suffix, such as {expected}"


def test_each_rule_about_cel_has_a_case() -> None:
    assert {case[0] for case in CASES} == {rule.id for rule in GROUPS["CEL"]}


@pytest.mark.parametrize(
    "wrong", [case[1] for case in CASES if case[0].startswith(("quantity-c", "version-c", "sign", "version-as"))]
)
def test_the_remedy_compiles(wrong: str) -> None:
    remedy = re.sub(r"^.*?write ", "", help_for(wrong))
    assert ids(remedy if "sign(" not in remedy else f"{remedy} == 1") == set()


def test_an_attribute_may_be_called_like_a_field_of_a_value() -> None:
    assert ids(f'{A}.version == "1" && {A}.string != "x"') == set()
    assert ids('device.driver == "gpu" && device.attributes["gpu"].version == "1"') == set()


def test_an_attribute_may_equal_a_string_with_a_unit() -> None:
    assert ids(f'{A}.profile == "40Gi" && {A}.memory >= 42949672960') == set()


def test_lists_are_fine_where_the_feature_gate_is_on() -> None:
    assert ids(f'{A}.links.includes("a") || {A}.links.exists(x, x == "b")', Release.alpha()) == set()


def test_words_in_strings_and_names_are_not_operators() -> None:
    assert ids(f'{A}.model == "this and = that" && {A}.and == 1') == set()
    assert ids(f'{A}.model == "this and = that" )') == {"cel-compile"}


def test_a_variable_of_that_name_is_not_a_field_of_the_device() -> None:
    assert ids(f"cel.bind(driver, {A}, driver.mig) && unknown") == {"cel-compile"}


def test_each_mistake_of_an_expression_is_reported() -> None:
    assert ids(f"{C}.memory > 80 && {A}.v.isLessThan('1.0.0')") == {"quantity-comparison", "version-comparison"}


def test_the_marker_is_below_the_mistake_in_a_block_of_several_lines() -> None:
    expression = f"""\
        {GUARD} &&
          {C}.memory >= 80"""
    (finding,) = found(device_class(textwrap.dedent(expression)))
    assert (finding.line, underlined(finding)) == (9, ">=")
    assert finding.source.strip() == f"{C}.memory >= 80"


def test_the_marker_is_below_the_mistake_in_a_folded_text() -> None:
    body = f"deviceClassName: gpu\nselectors:\n- cel:\n    expression: >\n      {A}.model\n      = 'x'\n"
    (finding,) = found(claim(body))
    assert (underlined(finding), finding.source.strip()) == ("=", "= 'x'")


def test_alternatives_and_classes_are_checked() -> None:
    text = """
        apiVersion: resource.k8s.io/v1
        kind: ResourceClaim
        metadata: {name: lunch}
        spec:
          devices:
            requests:
            - name: gpu
              firstAvailable:
              - {name: big, deviceClassName: gpu, selectors: [{cel: {expression: driver == "x"}}]}
    """
    (finding,) = found(text)
    assert finding.path == "spec.devices.requests[0].firstAvailable[0].selectors[0].cel.expression"
