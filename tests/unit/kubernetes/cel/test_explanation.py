from __future__ import annotations

from dra_kit.kubernetes.cel.device import Device
from dra_kit.kubernetes.cel.explanation import Explanation
from dra_kit.kubernetes.cel.explanation import explain as explain_selector
from dra_kit.kubernetes.cel.program import compile_selector
from tests.unit.kubernetes.cel.devices import BARE, GPU, selector


def explain(expression: str, device: Device = GPU) -> Explanation:
    return explain_selector(selector(expression), device)


def test_false_condition_is_explained_with_values() -> None:
    explanation = explain('device.driver == "gpu.example.com" && $a.model == "A100"')

    [unmet] = explanation.unmet
    assert explanation.result is False
    assert unmet.text == 'device.attributes["gpu.example.com"].model == "A100"'
    assert unmet.values == (('device.attributes["gpu.example.com"].model', '"H200"'),)


def test_conditions_after_false_one_are_evaluated() -> None:
    explanation = explain('false && $a.index == 3 && $a.model == "A100"')

    assert [conjunct.result for conjunct in explanation.conjuncts] == [False, True, False]


def test_conditions_in_parentheses_and_bindings_are_split() -> None:
    explanation = explain('(true && cel.bind(g, $a, g.index == 3 && (g.model == "A100" && g.ecc)))')

    assert [(conjunct.text, conjunct.result) for conjunct in explanation.conjuncts] == [
        ("true", True),
        ("g.index == 3", True),
        ('g.model == "A100"', False),
        ("g.ecc", True),
    ]
    assert dict(explanation.conjuncts[2].values) == {"g.model": '"H200"'}


def test_condition_has_position() -> None:
    program = compile_selector('true &&\n  device.driver == "x"')

    [_, conjunct] = explain_selector(program, GPU).conjuncts

    assert (conjunct.line, conjunct.column) == (2, 3)


def test_missing_attribute_is_explained() -> None:
    explanation = explain('device.driver != "" && $a.model == "H200"', BARE)

    assert explanation.result is None
    assert explanation.error == "no such key: model"
    [unmet] = explanation.unmet
    assert unmet.result is None
    assert unmet.error == "no such key: model"
    assert dict(unmet.values) == {'device.attributes["gpu.example.com"].model': "error: no such key: model"}


def test_computed_operands_are_explained() -> None:
    [conjunct] = explain('$c.memory.compareTo(quantity("100Gi")) >= 0').conjuncts

    memory = 'device.capacity["gpu.example.com"].memory'
    assert conjunct.values == ((memory, "80Gi"), (f'{memory}.compareTo(quantity("100Gi"))', "-1"))


def test_format_value_writes_expression_syntax() -> None:
    [conjunct] = explain(
        "[$a.driverVersion] == $a.labels || $a.ecc != $a.?missing.hasValue() || {'a': $a.empty} == {'a': $a.empty}"
    ).conjuncts

    shown = {text.rpartition(".")[2]: value for text, value in conjunct.values}
    assert shown["driverVersion"] == "550.127.8"
    assert shown["labels"] == '["b", "a", "c", "a"]'
    assert shown["ecc"] == "true"
    assert shown["hasValue()"] == "false"


def test_matching_selector_has_no_false_condition() -> None:
    explanation = explain('device.driver == "gpu.example.com" || $a.missing == 1')

    assert explanation.result is True
    assert explanation.unmet == ()


def test_result_that_is_not_bool_is_explained() -> None:
    explanation = explain("$a.model")

    assert explanation.result is None
    assert "string" in explanation.error
    assert "not bool" in explanation.conjuncts[0].error
