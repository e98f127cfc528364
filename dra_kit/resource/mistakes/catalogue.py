"""All rules about expressions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final, TypeAlias

from dra_kit import cel
from dra_kit.cel.syntax import Literal, walk
from dra_kit.resource import names
from dra_kit.resource.mistakes import domains, quantities, versions, writing
from dra_kit.resource.mistakes.advertised import Advertised
from dra_kit.resource.mistakes.devices import device_mistakes
from dra_kit.resource.mistakes.expression import Expression
from dra_kit.resource.mistakes.mistake import Mistake, comparison

Check: TypeAlias = Callable[[Expression], Iterator[Mistake]]

EXPLAINING: Final[tuple[Check, ...]] = (
    writing.single_equals,
    writing.word_operator,
    writing.python_constant,
    writing.missing_device,
    writing.unknown_device_field,
    writing.hyphenated_name,
    domains.attribute_without_domain,
    quantities.quantity_comparison,
    quantities.quantity_argument,
    quantities.sign_method,
    versions.version_comparison,
    domains.list_attribute,
    writing.unknown_function,
)
"""Why an expression does not compile."""

ALWAYS: Final[tuple[Check, ...]] = (
    domains.domain_with_name,
    quantities.invalid_quantity,
    versions.invalid_version,
    versions.version_as_text,
)
"""What is wrong with an expression even if it compiles."""


def mistakes(expression: Expression, advertised: Advertised | None = None) -> Iterator[Mistake]:
    """Everything that is wrong with an expression, as far as its text and the names and types of devices tell.

    Args:
        expression: compiled or not.
        advertised: the devices that are known; None looks at the text alone.
    """
    driver = _driver(expression, advertised)
    of_text = [replace(found, help=found.help.replace(domains.SOME_DRIVER, driver)) for found in _of_text(expression)]
    of_devices = list(device_mistakes(expression, advertised)) if advertised is not None else []
    if any(mistake.rule == "attribute-type" for mistake in of_devices):
        # who knows the type need not guess that a text may be a version
        of_text = [mistake for mistake in of_text if mistake.rule != "version-as-text"]
    yield from of_text
    yield from of_devices


def _driver(expression: Expression, advertised: Advertised | None) -> str:
    """The driver whose devices an expression is about, as far as that is known."""
    for node in walk(expression.root) if expression.root else ():
        sides = comparison(node)
        for one, other in ((sides[0], sides[2]), (sides[2], sides[0])) if sides else ():
            named = other.value if isinstance(other, Literal) else None
            if one.text(expression.text) == "device.driver" and isinstance(named, str):
                return named
    drivers = advertised.drivers if advertised is not None else set()
    return next(iter(drivers)) if len(drivers) == 1 else domains.SOME_DRIVER


def _of_text(expression: Expression) -> Iterator[Mistake]:
    if expression.error is not None:
        explained = [mistake for check in EXPLAINING for mistake in check(expression)]
        yield from explained or [_compile_error(expression, expression.error)]
    elif expression.program is not None and expression.program.cost > cel.MAX_COST:
        cost = expression.program.cost
        estimate = "has no bound" if cost > 2**60 else f"is {cost:,}"
        message = f"the estimated cost {estimate}; the API server accepts {cel.MAX_COST:,}"
        wish = "avoid loops in loops, and matches() or contains() on long texts"
        yield Mistake("cel-cost", 0, len(expression.text), message, wish)
    for check in ALWAYS:
        yield from check(expression)


def _compile_error(expression: Expression, error: cel.CelCompileError) -> Mistake:
    text = expression.text
    if names.byte_length(text) > cel.MAX_LENGTH:
        message = f"the expression is longer than {cel.MAX_LENGTH} bytes"
        return Mistake("cel-cost", 0, len(text), message, "say it in several selectors: all of them must be true")
    if not error.line:
        return Mistake("cel-compile", 0, len(text), str(error), "")
    lines = text.split("\n")
    index = sum(len(line) + 1 for line in lines[: error.line - 1]) + error.column - 1
    message = str(error).removeprefix(f"{error.line}:{error.column}: ")
    return Mistake("cel-compile", index, index + 1, message, "")
