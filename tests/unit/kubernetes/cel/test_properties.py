from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from dra_kit.errors import CelCompileError, CelRuntimeError
from dra_kit.kubernetes.cel.explanation import explain
from dra_kit.kubernetes.cel.failures import CompileFailure
from dra_kit.kubernetes.cel.parser import parse
from dra_kit.kubernetes.cel.program import MAX_COST, compile_derived, compile_selector
from dra_kit.kubernetes.cel.tree import (
    CallNode,
    ComprehensionNode,
    IdentNode,
    ListNode,
    LiteralNode,
    MapNode,
    SelectNode,
    SyntaxNode,
    walk,
)
from tests.unit.kubernetes.cel.devices import BARE, GPU
from tests.unit.kubernetes.cel.expressions import ANYTHING, CONDITIONS, LISTS, NUMBERS, TEXTS


def shape(node: SyntaxNode) -> object:
    """Return the syntax tree without positions."""
    match node:
        case LiteralNode():
            own: tuple[object, ...] = (type(node.value), repr(node.value))
        case IdentNode():
            own = (node.name,)
        case SelectNode():
            own = (node.field, node.test_only)
        case CallNode():
            own = (node.function, node.target is None)
        case ListNode() | MapNode():
            own = (node.optional,)
        case ComprehensionNode():
            own = (node.macro, node.variable, node.variable2)
        case _:
            own = ()
    return type(node), own, tuple(shape(child) for child in node.children())


@settings(deadline=None)
@given(CONDITIONS)
def test_text_of_subexpression_parses_to_it(expression: str) -> None:
    for node in walk(parse(expression)):
        text = node.text(expression)
        if isinstance(node, CallNode) and node.macro not in {"", "chain"}:
            continue  # the expansion of a macro has the position of the macro
        if isinstance(node, (IdentNode, LiteralNode)) and text not in {getattr(node, "name", ""), "true", "false"}:
            continue
        if not isinstance(node, (ListNode, ComprehensionNode)):
            assert shape(parse(text)) == shape(node)


@settings(deadline=None)
@given(CONDITIONS, st.sampled_from([" ", "\n", "// some words\n", "\t "]))
def test_white_space_between_tokens_is_ignored(expression: str, space: str) -> None:
    spaced = "".join(
        {"(": f"({space}", " ": f" {space}", ")": f"{space})"}.get(letter, letter) for letter in expression
    )

    assert shape(parse(spaced)) == shape(parse(expression))


@settings(deadline=None)
@given(st.text(max_size=30))
def test_parser_accepts_or_rejects_any_text(text: str) -> None:
    try:
        parse(text)
    except CompileFailure:
        pass


@settings(deadline=None)
@given(CONDITIONS)
def test_estimate_is_upper_bound_of_cost(expression: str) -> None:
    program = compile_selector(expression)
    for device in (GPU, BARE):
        try:
            _, cost = program.evaluate(device)
        except CelRuntimeError:
            continue
        assert cost <= program.cost


@settings(deadline=None)
@given(ANYTHING)
def test_evaluation_returns_value_or_cel_error(expression: str) -> None:
    try:
        program = compile_derived(expression)
    except CelCompileError:
        return
    for device in (GPU, BARE):
        try:
            _, cost = program.evaluate(device)
        except CelRuntimeError:
            continue
        assert 0 <= cost <= MAX_COST


@settings(deadline=None)
@given(CONDITIONS)
def test_explanation_agrees_with_verdict(expression: str) -> None:
    program = compile_selector(expression)
    explanation = explain(program, GPU)
    verdict, message = None, ""
    try:
        verdict = program.matches(GPU)
    except CelRuntimeError as error:
        message = error.message

    assert (explanation.result, explanation.error) == (verdict, message)
    assert (verdict is True) is (not explanation.unmet)


@settings(deadline=None)
@given(LISTS, NUMBERS)
def test_all_is_negated_exists(values: str, number: str) -> None:
    every = compile_selector(f"{values}.all(x, x < {number})")
    none = compile_selector(f"!{values}.exists(x, !(x < {number}))")

    assert every.matches(GPU) is none.matches(GPU)


@settings(deadline=None)
@given(TEXTS, TEXTS)
def test_join_reverses_split(text: str, separator: str) -> None:
    assert compile_selector(f"{text}.split({separator}).join({separator}) == {text}").matches(GPU)
