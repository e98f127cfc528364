"""All rules, in the order in which they are applied."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, TypeAlias

from msgspec.structs import replace

from dra_kit.diagnosis.selector_mistakes.device_rules import Advertised, device_mistakes
from dra_kit.diagnosis.selector_mistakes.expression import (
    Kind,
    ManifestExpression,
    Mistake,
    character_index,
    comparison_of,
    conjuncts,
    string_constant,
    value_read,
)
from dra_kit.diagnosis.selector_mistakes.text_rules import (
    SOME_DRIVER,
    attribute_field,
    attribute_quantity,
    attribute_without_domain,
    capacity_use,
    domain_with_name,
    hyphenated_name,
    invalid_constant,
    list_attribute,
    missing_device,
    name_with_domain,
    plain_quantity,
    python_constant,
    quantity_argument,
    quantity_as_text,
    quantity_comparison,
    sign_method,
    single_equals,
    unknown_device_field,
    unknown_function,
    version_as_text,
    version_comparison,
    word_operator,
)
from dra_kit.errors import CelCompileError
from dra_kit.kubernetes.cel.program import MAX_COST, MAX_LENGTH
from dra_kit.kubernetes.cel.tree import SyntaxNode
from dra_kit.kubernetes.values.json import byte_length

STANDARD_DOMAIN: Final = "resource.kubernetes.io"
STANDARD: Final = frozenset({"pcieRoot", "pciBusID", "numaNode"})
"""Attributes of Kubernetes' own domain, regardless of the driver."""
_NodeRule: TypeAlias = Callable[[SyntaxNode, ManifestExpression], Iterator[Mistake]]
_EXPLAINING: Final[tuple[_NodeRule, ...]] = (
    python_constant,
    unknown_device_field,
    hyphenated_name,
    attribute_without_domain,
    quantity_comparison,
    quantity_argument,
    sign_method,
    version_comparison,
    list_attribute,
    unknown_function,
)
"""Rules that explain why an expression does not compile."""
_ALWAYS: Final[tuple[_NodeRule, ...]] = (
    attribute_quantity,
    attribute_field,
    quantity_as_text,
    invalid_constant,
    version_as_text,
)
"""Rules about expressions that compile or do not."""
_OF_TYPES: Final = frozenset({"attribute-quantity", "quantity-as-text", "version-as-text"})
"""Rules that guess the type of an attribute."""


def mistakes(
    expression: ManifestExpression, advertised: Advertised | None = None, driver: str = ""
) -> Iterator[Mistake]:
    """Find the mistakes in an expression by its text and by the names and types of devices.

    Args:
        expression: the expression, which need not compile.
        advertised: the known devices; None checks only the text.
        driver: the driver that the class selects; empty if unknown.
    """
    named = driver_of(expression) or driver
    likely = _only(expression.nodes(), expression)
    of_text = [_of_driver(found, named, likely, advertised) for found in _of_text(expression)]
    of_devices = list(device_mistakes(expression, advertised)) if advertised is not None else []
    if of_devices and any(guess.rule in _OF_TYPES for guess in of_text):
        # what is known about an attribute need not be guessed
        judged = _comparisons_with(of_devices, expression)
        of_text = [guess for guess in of_text if guess.rule not in _OF_TYPES or not _is_in(guess, judged)]
    yield from of_text
    yield from of_devices


def _comparisons_with(found: Sequence[Mistake], expression: ManifestExpression) -> list[SyntaxNode]:
    """Return the comparisons of an expression in which mistakes are."""
    return [
        node
        for node in expression.nodes()
        if (comparison_of(node, value_read) is not None or capacity_use(node, expression) is not None)
        and any(_is_in(mistake, [node]) for mistake in found)
    ]


def _is_in(mistake: Mistake, nodes: Iterable[SyntaxNode]) -> bool:
    return any(node.start <= mistake.start and mistake.end <= node.end for node in nodes)


def driver_of(expression: ManifestExpression) -> str:
    """Return the only driver that a selector can match; empty if it requires none."""
    return _only(conjuncts(expression.root), expression) if expression.root else ""


def _only(nodes: Iterable[SyntaxNode], expression: ManifestExpression) -> str:
    """Return the only driver that nodes compare with; empty if there is none, or more than one."""
    found = set()
    for node in nodes:
        sides = comparison_of(node, lambda side: side.text(expression.text) == "device.driver")
        if sides and sides[1] == "==" and (named := string_constant(sides[2])) is not None:
            found.add(named)
    return found.pop() if len(found) == 1 else ""


def _of_driver(found: Mistake, driver: str, likely: str, advertised: Advertised | None) -> Mistake:
    """Insert a driver's name into the remedy of a mistake; retain its fix only if the driver is certain."""
    if SOME_DRIVER not in found.help:
        return found
    drivers = advertised.drivers if advertised is not None else set()
    name = driver or (next(iter(drivers)) if len(drivers) == 1 else "")
    read = found.help.rpartition(".")[2]
    kind: Kind = "capacity" if found.help.startswith("write device.capacity") else "attributes"
    has = bool(name) and advertised is not None and read in advertised.names(kind, name)
    if read in STANDARD and not has:
        return replace(found, help=found.help.replace(SOME_DRIVER, STANDARD_DOMAIN), fix=())
    sure = has or (bool(name) and name not in drivers)
    fix = tuple(replace(one, text=one.text.replace(SOME_DRIVER, name)) for one in found.fix) if sure else ()
    shown = name or likely or SOME_DRIVER
    return replace(found, help=found.help.replace(SOME_DRIVER, shown), fix=fix)


def _of_text(expression: ManifestExpression) -> Iterator[Mistake]:
    if expression.error is not None:
        explained = (
            [*single_equals(expression), *word_operator(expression), *plain_quantity(expression)]
            if expression.root is None
            else [*missing_device(expression), *_of_nodes(_EXPLAINING, expression)]
        )
        guessed = any(_of_nodes((attribute_quantity, attribute_field), expression))
        yield from explained or ([] if guessed else [_compile_error(expression, expression.error)])
    elif expression.program is not None and expression.program.cost > MAX_COST:
        cost = expression.program.cost
        estimate = "has no bound" if cost > 2**60 else f"is {cost:,}"
        message = f"the estimated cost {estimate}; the API server accepts {MAX_COST:,}"
        wish = "avoid loops in loops, and matches() or contains() on long strings"
        yield Mistake("cel-cost", 0, len(expression.text), message, wish)
    yield from domain_with_name(expression)
    yield from name_with_domain(expression)
    yield from _of_nodes(_ALWAYS, expression)


def _of_nodes(rules: Iterable[_NodeRule], expression: ManifestExpression) -> Iterator[Mistake]:
    for rule in rules:
        for node in expression.nodes():
            yield from rule(node, expression)


def _compile_error(expression: ManifestExpression, error: CelCompileError) -> Mistake:
    text = expression.text
    if byte_length(text) > MAX_LENGTH:
        message = f"the expression is longer than {MAX_LENGTH} bytes"
        return Mistake("cel-cost", 0, len(text), message, "split it into several selectors, which must all be true")
    if not error.line:
        return Mistake("cel-compile", 0, len(text), str(error), "")
    index = character_index(text, error.line, error.column)
    return Mistake("cel-compile", index, index + 1, error.problem, "")
