"""Names and types in an expression against the devices that are known."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Final

from dra_kit import cel
from dra_kit.cel.syntax.tree import Call, Ident, Literal, Node, Select, walk
from dra_kit.resource.mistakes.advertised import Advertised, Trait
from dra_kit.resource.mistakes.expression import Expression
from dra_kit.resource.mistakes.mistake import (
    EQUAL,
    ORDERED,
    SWAPPED,
    Mistake,
    Replacement,
    comparison,
    quoted,
    value_read,
)
from dra_kit.resource.mistakes.reads import Kind, Read, reads
from dra_kit.resource.mistakes.versions import as_version, compared, is_version
from dra_kit.values.nearest import did_you_mean, one_slip

_SINGULAR: Final[Mapping[Kind, str]] = {"attributes": "attribute", "capacity": "capacity"}
_OTHER: Final[Mapping[Kind, Kind]] = {"attributes": "capacity", "capacity": "attributes"}
_INTEGER: Final = re.compile(r"-?(?:0|[1-9][0-9]{0,17})")
_TRUTH: Final = frozenset({"true", "false"})
_NUMBERS: Final = frozenset({"int", "double"})


def device_mistakes(expression: Expression, advertised: Advertised) -> Iterator[Mistake]:
    """Yield what an expression asks for and no known device can answer.

    Args:
        expression: one that compiles, or at least parses.
        advertised: the devices.
    """
    if expression.root is None:
        return
    yield from _drivers(expression, advertised)
    for read in reads(expression.root):
        if read.domain and "/" not in read.domain and not read.last:
            yield from _name(expression, read, advertised)
    if expression.error is None:  # else the types are what is notified of already
        for node in walk(expression.root):
            yield from _type(expression, node, advertised)


def _drivers(expression: Expression, advertised: Advertised) -> Iterator[Mistake]:
    for node in walk(expression.root) if expression.root else ():
        sides = comparison(node)
        for one, other in ((sides[0], sides[2]), (sides[2], sides[0])) if sides else ():
            is_driver = isinstance(one, Select) and one.field == "driver" and isinstance(one.operand, Ident)
            if is_driver and isinstance(other, Literal) and isinstance(other.value, str):
                wish = unknown_driver(other.value, advertised)
                if wish is not None:
                    message = f"no device is of a driver {json.dumps(other.value)}"
                    suggestion = one_slip(other.value, advertised.drivers)
                    fix = (
                        (Replacement(other.start, other.end, quoted(suggestion, expression.text)),)
                        if suggestion
                        else ()
                    )
                    yield Mistake("unknown-driver", other.start, other.end, message, wish, fix)


def unknown_driver(name: str, advertised: Advertised) -> str | None:
    """Return what to write instead of the name of a driver without devices; None if nothing is known to be wrong."""
    if name in advertised.drivers:
        return None
    near = did_you_mean(name, advertised.drivers).removeprefix("; ")
    if near or (advertised.complete and advertised.total):
        return near or f"there are devices of {_listed(advertised.drivers)}"
    return None


def _name(expression: Expression, read: Read, advertised: Advertised) -> Iterator[Mistake]:
    assert read.domain is not None  # noqa: S101 - the caller looked
    kind, other = read.kind, _OTHER[read.kind]
    domains = advertised.domains(kind) | advertised.domains(other) | advertised.drivers
    if read.domain not in domains:
        near = did_you_mean(read.domain, domains).removeprefix("; ")
        if (near or advertised.complete) and advertised.total and not (read.tested and not near):
            wish = near or f"they have {_listed(domains)}"
            message = f"no device has attributes or capacities in the domain {json.dumps(read.domain)}"
            rule = "unknown-domain"
            if advertised.complete and _fails(expression, read, advertised):
                rule, message = "missing-domain", f"{message}: the selector fails, and the whole allocation with it"
            suggestion = one_slip(read.domain, domains)
            yield Mistake(rule, *read.domain_span(), message, wish, _domain(expression, read, suggestion))
        return
    known = advertised.names(kind, read.domain)
    if read.name is None or read.name in known:
        return
    near = did_you_mean(read.name, known).removeprefix("; ")
    # a standard attribute such as pcieRoot is in a domain of Kubernetes, whatever driver publishes it
    homes = sorted(domain for domain in advertised.domains(kind) if read.name in advertised.names(kind, domain))
    if homes and read.domain in advertised.drivers:
        wish = f'write device.{kind}["{homes[0]}"].{read.name}'
        message = f"{read.name} is no {_SINGULAR[kind]} of {read.domain}: devices have it in the domain {homes[0]}"
        fix = _domain(expression, read, homes[0]) if len(homes) == 1 else ()
        yield Mistake(f"unknown-{_SINGULAR[kind]}", *read.name_span(expression.text), message, wish, fix)
        return
    elsewhere = read.name in advertised.names(other, read.domain)
    if not near and not elsewhere and (read.tested or not advertised.speaks_for(read.domain)):
        return
    if elsewhere:
        wish = f'it is {_with_article(_SINGULAR[other])}: device.{other}["{read.domain}"].{read.name}'
    else:
        wish = f"{near} they have {_listed(known)}".lstrip() if known else f"they have no {_plural(kind)} there"
    message = f"no device has {_with_article(_SINGULAR[kind])} {read.name} in the domain {json.dumps(read.domain)}"
    suggestion = "" if elsewhere else one_slip(read.name, known)
    yield Mistake(
        f"unknown-{_SINGULAR[kind]}",
        *read.name_span(expression.text),
        message,
        wish,
        _renamed(expression, read, suggestion),
    )


def _domain(expression: Expression, read: Read, suggestion: str) -> tuple[Replacement, ...]:
    """Return the edit that writes another domain; nothing where the domain is no constant of its own."""
    node = read.domain_node
    if not suggestion or not isinstance(node, Literal) or node.value != read.domain:
        return ()
    return (Replacement(node.start, node.end, quoted(suggestion, expression.text)),)


def _renamed(expression: Expression, read: Read, suggestion: str) -> tuple[Replacement, ...]:
    """Return the edit that writes another name; nothing where the text has the name in another form."""
    begin, end = read.name_span(expression.text)
    if not suggestion or expression.text[begin:end] != read.name:
        return ()
    return (Replacement(begin, end, suggestion),)


def _fails(expression: Expression, read: Read, advertised: Advertised) -> bool:
    """Whether evaluation comes to a read of what no device has, and ends there."""
    if read.tested or not isinstance(expression.program, cel.Selector):
        return False
    for device, _ in advertised.distinct:
        try:
            expression.program.matches(device.view)
        except cel.CelRuntimeError as error:
            if error.kind == "no-such-key" and (read.name is None or error.key == read.name):
                return True
    return False


def _type(expression: Expression, node: Node, advertised: Advertised) -> Iterator[Mistake]:
    sides = comparison(node)
    if sides is None or not isinstance(node, Call):
        return
    left, operator, right = sides
    read = value_read(left)
    if read is None:
        left, operator, right = right, SWAPPED[operator], left
        read = value_read(left)
    given = _type_of(right)
    if read is None or read.kind != "attributes" or not read.domain or not read.name or given is None:
        return
    trait = advertised.names("attributes", read.domain).get(read.name)
    if trait is None or any(_fits(given, of, ordered=node.function in ORDERED) for of in trait.types):
        return
    found = " or ".join(sorted(trait.types))
    message = f"{read.name} is {_with_article(found)}, and never equal to {_with_article(given)}"
    if node.function in ORDERED:
        message = f"{read.name} is {_with_article(found)}, which cannot be compared with {_with_article(given)}"
    wish = _wish(left.text(expression.text), operator, right, trait, expression.text)
    fix = _retyped(operator, right, trait, expression)
    yield Mistake("attribute-type", right.start, right.end, message, wish, fix)


def _retyped(operator: str, right: Node, trait: Trait, expression: Expression) -> tuple[Replacement, ...]:
    """Return the edit that writes a constant as a value of the attribute's type; nothing where it is no such value."""
    if not isinstance(right, Literal) or len(trait.types) != 1:
        return ()
    of, text, value = next(iter(trait.types)), right.text(expression.text), right.value
    made = ""
    if isinstance(value, str) and operator in EQUAL.values() and of == "version" and is_version(value):
        made = as_version(value)
    elif isinstance(value, str) and ((of == "int" and _INTEGER.fullmatch(value)) or (of == "bool" and value in _TRUTH)):
        made = value
    elif not isinstance(value, str) and of == "string" and text in trait.values:
        made = quoted(text, expression.text)
    return (Replacement(right.start, right.end, made),) if made else ()


def _fits(given: str, of: str, *, ordered: bool) -> bool:
    if given in _NUMBERS and of == "int":
        return True
    return given == of and not (ordered and of in {"version", "bool"})


def _type_of(node: Node) -> str | None:
    if isinstance(node, Call) and node.target is None and node.function == "semver":
        return "version"
    if not isinstance(node, Literal):
        return None
    names = {bool: "bool", int: "int", float: "double", str: "string"}
    return names.get(type(node.value))


def _wish(left: str, operator: str, right: Node, trait: Trait, text: str) -> str:
    constant = right.value if isinstance(right, Literal) else None
    if "version" in trait.types and isinstance(constant, str):
        version = as_version(constant)
        return (
            f"write {left} {operator} {version}"
            if operator in {"==", "!="}
            else (f"write {compared(left, operator, version)}")
        )
    if "int" in trait.types and isinstance(constant, str) and constant.lstrip("-").isdigit():
        return f"write it without quotes: {constant}"
    if "bool" in trait.types and isinstance(constant, str) and constant.lower() in {"true", "false"}:
        return f"write it without quotes: {constant.lower()}"
    if "string" in trait.types and constant is not None:
        return f"write it in quotes: {json.dumps(right.text(text))}; devices have {trait.shown()}"
    lists = [of for of in trait.types if of.startswith("list of ")]
    if lists:
        return f"write {left}.includes({right.text(text)})"
    return f"devices have {trait.shown()}"


def _with_article(noun: str) -> str:
    return f"{'an' if noun[:1] in 'aeiou' else 'a'} {noun}"


def _plural(kind: Kind) -> str:
    return "capacities" if kind == "capacity" else kind


def _listed(names: Iterator[str] | frozenset[str] | set[str] | Mapping[str, object]) -> str:
    found = sorted(names)
    return ", ".join([*found[:8], "…"] if len(found) > 8 else found) or "none"
