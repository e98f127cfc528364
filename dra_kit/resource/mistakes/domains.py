"""Mistakes with the domains of attributes and capacities."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from dra_kit.cel.syntax.tree import Call, Comprehension, walk
from dra_kit.resource.mistakes.expression import Expression
from dra_kit.resource.mistakes.mistake import Mistake, Replacement, comparison, operator_span, quoted
from dra_kit.resource.mistakes.reads import read_of, reads

SOME_DRIVER: Final = "<driver>"
"""Stands in a remedy for a driver that is not known from the expression alone."""
_OF_OPTIONALS: Final = frozenset({"orValue", "or", "hasValue", "value"})


def attribute_without_domain(expression: Expression) -> Iterator[Mistake]:
    """``device.attributes["model"] == "x"``, ``device.attributes.model == "x"``, and methods of what is none."""
    for node in walk(expression.root) if expression.root else ():
        sides = comparison(node)
        used = [sides[0], sides[2]] if sides else []
        if isinstance(node, Call) and node.target is not None and node.function not in _OF_OPTIONALS:
            used.append(node.target)  # of a method
        for side in used:
            read = read_of(side)
            if read is None or not read.last or read.tested or not read.domain or "/" in read.domain:
                continue
            message = f"{read.domain} stands where the domain of the name goes, which is mostly the driver's name"
            wish = f'write device.{read.kind}["{SOME_DRIVER}"].{read.domain}'
            whole = f"device.{read.kind}[{quoted(SOME_DRIVER, expression.text)}].{read.domain}"
            plain = read.domain.isidentifier() and read.domain.isascii()
            fix = (Replacement(read.node.start, read.node.end, whole),) if plain else ()
            yield Mistake("attribute-without-domain", *read.domain_span(), message, wish, fix)


def domain_with_name(expression: Expression) -> Iterator[Mistake]:
    """``device.attributes["gpu.example.com/model"]``."""
    seen = set()
    for read in reads(expression.root) if expression.root else ():
        if read.domain and "/" in read.domain and read.domain_span() not in seen:
            seen.add(read.domain_span())
            domain, _, name = read.domain.partition("/")
            message = f"no domain has a slash in it, so that {read.domain} is never found"
            wish = f'write device.{read.kind}["{domain}"].{name}'
            if read.tested and read.last:
                wish = f'write "{name}" in device.{read.kind}["{domain}"]'
            plain = read.last and not read.tested and name.isidentifier() and name.isascii()
            whole = f"device.{read.kind}[{quoted(domain, expression.text)}].{name}"
            fix = (Replacement(read.node.start, read.node.end, whole),) if plain else ()
            yield Mistake("domain-with-name", *read.domain_span(), message, wish, fix)


def list_attribute(expression: Expression) -> Iterator[Mistake]:
    """``attribute.includes(x)`` and ``attribute.exists(x, …)`` where attributes are no lists."""
    if expression.declarations.list_type_attributes or expression.error is None or expression.root is None:
        return
    text = expression.text
    for node in walk(expression.root):
        if isinstance(node, Call) and node.function == "includes" and node.target is not None:
            begin, end = operator_span(node, expression)
            argument = node.arguments[0].text(text) if node.arguments else "…"
            message = "the API server takes includes only where its feature gate DRAListTypeAttributes is on"
            wish = f"for a text, write {node.target.text(text)}.contains({argument})"
            yield Mistake("list-attribute", begin, end, message, wish)
        elif isinstance(node, Comprehension) and not node.is_bind:
            read = read_of(node.iteration_range)
            if read is not None and read.kind == "attributes" and not read.last:
                message = "attributes are lists only where the feature gate DRAListTypeAttributes is on"
                wish = f"ask for the value itself: {node.iteration_range.text(text)} == …"
                yield Mistake("list-attribute", node.place, node.place + 1, message, wish)
