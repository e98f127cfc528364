"""Mistakes in comparison with the advertised devices: unknown drivers, names, types and values."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, Final, TypeAlias

from dra_kit.diagnosis.selector_mistakes.expression import (
    EQUAL,
    ORDERED,
    Kind,
    ManifestExpression,
    Mistake,
    Read,
    Replacement,
    comparison_of,
    is_number,
    quoted,
    reads,
    replacing,
    string_constant,
    value_read,
)
from dra_kit.diagnosis.selector_mistakes.text_rules import (
    COMPARING,
    as_version,
    capacity_use,
    compared,
    is_attribute_name,
    is_version,
)
from dra_kit.errors import CelRuntimeError
from dra_kit.kubernetes.cel.device import Device
from dra_kit.kubernetes.cel.program import Selector
from dra_kit.kubernetes.cel.tree import CallNode, IdentNode, LiteralNode, SelectNode, SyntaxNode
from dra_kit.kubernetes.resource import v1
from dra_kit.kubernetes.resource.slice_reader import DeviceShape, LazySlice, has_plain_attributes
from dra_kit.kubernetes.values.quantity import InvalidQuantity, Quantity
from dra_kit.text import did_you_mean, suggest_names, unambiguous_correction

_SINGULAR: Final[Mapping[Kind, str]] = {"attributes": "attribute", "capacity": "capacity"}
_OTHER: Final[Mapping[Kind, Kind]] = {"attributes": "capacity", "capacity": "attributes"}
_INTEGER: Final = re.compile(r"-?(?:0|[1-9][0-9]{0,17})")
_MADE: Final = {"semver": "version", "quantity": "quantity"}
_TRUTH: Final = frozenset({"true", "false"})


def device_mistakes(expression: ManifestExpression, advertised: Advertised) -> Iterator[Mistake]:
    """Yield what an expression reads and no known device has."""
    yield from _drivers(expression, advertised)
    for read in reads(expression):
        is_qualified = "/" not in f"{read.domain}{read.name or ''}" and not is_attribute_name(read, expression)
        if read.domain and is_qualified and not read.last:
            yield from _name(expression, read, advertised)
    for node in expression.nodes():
        use = capacity_use(node, expression)
        # other type errors of expressions that do not compile are already reported
        if expression.error is None or (use is not None and use.is_quantity):
            yield from _type(expression, node, advertised)


def _drivers(expression: ManifestExpression, advertised: Advertised) -> Iterator[Mistake]:
    for node in expression.nodes():
        sides = comparison_of(node, _is_driver)
        name = string_constant(sides[2]) if sides else None
        wish = unknown_driver(name, advertised) if name is not None else None
        if sides and name is not None and wish is not None:
            constant = sides[2]
            message = f"no device belongs to a driver {json.dumps(name)}"
            suggestion = unambiguous_correction(name, advertised.drivers)
            fix = replacing(constant, quoted(suggestion, expression.text)) if suggestion else ()
            yield Mistake("unknown-driver", constant.start, constant.end, message, wish, fix)


def _is_driver(node: SyntaxNode) -> bool:
    return isinstance(node, SelectNode) and node.field == "driver" and isinstance(node.operand, IdentNode)


def unknown_driver(name: str, advertised: Advertised) -> str | None:
    """Return the remedy for the name of a driver without devices; None if it may be correct."""
    if name in advertised.drivers:
        return None
    # gpu.example.org is probably gpu.example.com, and nic.example.com is another driver
    alike = [driver for driver in advertised.drivers if driver.partition(".")[0] == name.partition(".")[0]]
    near = suggest_names(name, advertised.drivers) or did_you_mean(name, alike).removeprefix("; ")
    if near or (advertised.complete and advertised.total):
        return near or f"there are devices of {_listed(advertised.drivers)}"
    return None


def _name(expression: ManifestExpression, read: Read, advertised: Advertised) -> Iterator[Mistake]:
    assert read.domain is not None  # noqa: S101 - the caller looked
    kind, other = read.kind, _OTHER[read.kind]
    domains = advertised.domains(kind) | advertised.domains(other) | advertised.drivers
    if read.domain not in domains:
        near = suggest_names(read.domain, domains)
        if (near or advertised.complete) and advertised.total and not (read.tested and not near):
            wish = near or f"they have {_listed(domains)}"
            message = f"no device has attributes or capacities in the domain {json.dumps(read.domain)}"
            rule = "unknown-domain"
            if advertised.complete and _fails(expression, read, advertised):
                rule, message = "missing-domain", f"{message}: the selector fails, and with it the allocation"
            suggestion = unambiguous_correction(read.domain, domains)
            yield Mistake(rule, *read.domain_span(), message, wish, _domain(expression, read, suggestion))
        return
    known = advertised.names(kind, read.domain)
    if read.name is None or read.name in known:
        return
    near = suggest_names(read.name, known)
    # a standard attribute such as pcieRoot is in a domain of Kubernetes
    homes = sorted(domain for domain in advertised.domains(kind) if read.name in advertised.names(kind, domain))
    if homes and read.domain in advertised.drivers:
        wish = f'write device.{kind}["{homes[0]}"].{read.name}'
        what = _with_article(_SINGULAR[kind])
        message = f"{read.name} is not {what} of {read.domain}: devices have it in the domain {homes[0]}"
        fix = _domain(expression, read, homes[0]) if len(homes) == 1 else ()
        yield Mistake(f"unknown-{_SINGULAR[kind]}", *read.name_span(expression.text), message, wish, fix)
        return
    elsewhere = read.name in advertised.names(other, read.domain)
    if not near and not elsewhere and (read.tested or not advertised.speaks_for(read.domain)):
        return
    fix = _renamed(expression, read, "" if elsewhere else unambiguous_correction(read.name, known))
    if elsewhere:
        wish = f'it is {_with_article(_SINGULAR[other])}: device.{other}["{read.domain}"].{read.name}'
        uses = (capacity_use(node, expression) for node in expression.nodes()) if kind == "attributes" else ()
        if use := next((use for use in uses if use is not None and use.read.node is read.node), None):
            wish = f"it is a capacity: write {use.text}"
            fix = use.fix
    else:
        wish = f"{near} they have {_listed(known)}".lstrip() if known else "they have none there"
    message = f"no device has {_with_article(_SINGULAR[kind])} {read.name} in the domain {json.dumps(read.domain)}"
    yield Mistake(f"unknown-{_SINGULAR[kind]}", *read.name_span(expression.text), message, wish, fix)


def _domain(expression: ManifestExpression, read: Read, suggestion: str) -> tuple[Replacement, ...]:
    """Return the edit that replaces the domain; empty if the domain is not a separate constant."""
    node = read.domain_node
    if not suggestion or not isinstance(node, LiteralNode) or node.value != read.domain:
        return ()
    return replacing(node, quoted(suggestion, expression.text))


def _renamed(expression: ManifestExpression, read: Read, suggestion: str) -> tuple[Replacement, ...]:
    """Return the edit that replaces the name; empty if the text has the name in another form."""
    begin, end = read.name_span(expression.text)
    if not suggestion or expression.text[begin:end] != read.name:
        return ()
    return (Replacement(begin, end, suggestion),)


def _fails(expression: ManifestExpression, read: Read, advertised: Advertised) -> bool:
    """Return whether evaluation fails at a read that no device has."""
    if read.tested or not isinstance(expression.program, Selector):
        return False
    for device, _ in advertised.distinct:
        try:
            expression.program.matches(device.view)
        except CelRuntimeError as error:
            if error.kind == "no-such-key" and (read.name is None or error.key == read.name):
                return True
    return False


def _type(expression: ManifestExpression, node: SyntaxNode, advertised: Advertised) -> Iterator[Mistake]:
    sides = comparison_of(node, value_read) or _method_sides(node)
    if sides is None:
        return
    left, operator, right = sides
    read, given = value_read(left), _type_of(right)
    if read is None or read.kind != "attributes" or not read.domain or not read.name or given is None:
        return
    trait = advertised.names("attributes", read.domain).get(read.name)
    is_method = operator in COMPARING
    is_ordered = is_method or operator in ORDERED.values()
    if trait is None or (is_method and (given not in _MADE.values() or given in trait.types)):
        return
    if any(_fits(given, of, ordered=is_ordered) for of in trait.types):
        return
    found = " or ".join(sorted(trait.types))
    message = f"{read.name} is {_with_article(found)}, and never equal to {_with_article(given)}"
    if is_ordered:
        message = f"{read.name} is {_with_article(found)}, which cannot be compared with {_with_article(given)}"
    wish = _wish(left.text(expression.text), operator, right, trait, expression.text)
    fix = _retyped(operator, right, trait, expression)
    yield Mistake("attribute-type", right.start, right.end, message, wish, fix)


def _method_sides(node: SyntaxNode) -> tuple[SyntaxNode, str, SyntaxNode] | None:
    """Return the object, method and argument of a call that compares quantities or versions."""
    if isinstance(node, CallNode) and node.function in COMPARING and node.target and len(node.arguments) == 1:
        return node.target, node.function, node.arguments[0]
    return None


def _retyped(operator: str, right: SyntaxNode, trait: Trait, expression: ManifestExpression) -> tuple[Replacement, ...]:
    """Return the edit that converts a constant to the attribute's type; empty if it cannot be converted."""
    if not isinstance(right, LiteralNode) or len(trait.types) != 1:
        return ()
    of, text, value = next(iter(trait.types)), right.text(expression.text), right.value
    made = ""
    if isinstance(value, str) and operator in EQUAL.values() and of == "version" and is_version(value):
        made = as_version(value)
    elif isinstance(value, str) and ((of == "int" and _INTEGER.fullmatch(value)) or (of == "bool" and value in _TRUTH)):
        made = value
    elif not isinstance(value, str) and of == "string" and text in trait.values:
        made = quoted(text, expression.text)
    return replacing(right, made)


def _fits(given: str, of: str, *, ordered: bool) -> bool:
    if given in {"int", "double"} and of == "int":
        return True
    return given == of and not (ordered and of in {"version", "bool"})


def _type_of(node: SyntaxNode) -> str | None:
    if isinstance(node, CallNode) and node.target is None and node.function in _MADE:
        return _MADE[node.function]
    if not isinstance(node, LiteralNode):
        return None
    names = {bool: "bool", int: "int", float: "double", str: "string"}
    return names.get(type(node.value))


def _wish(left: str, operator: str, right: SyntaxNode, trait: Trait, text: str) -> str:
    constant = string_constant(right)
    are_quantities = all(map(_is_quantity_text, trait.values))
    if are_quantities and "string" in trait.types and _type_of(right) == _QUANTITY:
        of_string, given = f"quantity({left})", right.text(text)
        whole = f"{of_string}.{operator}({given})" if operator in COMPARING else compared(of_string, operator, given)
        return f"write {whole}; devices have {trait.shown()}"
    if constant is not None:
        if "version" in trait.types:
            version = as_version(constant)
            is_equality = operator in EQUAL.values()
            return f"write {f'{left} {operator} {version}' if is_equality else compared(left, operator, version)}"
        if "int" in trait.types and constant.lstrip("-").isdigit():
            return f"write it without quotes: {constant}"
        if "bool" in trait.types and constant.lower() in _TRUTH:
            return f"write it without quotes: {constant.lower()}"
    elif "string" in trait.types and isinstance(right, LiteralNode):
        if are_quantities and operator in ORDERED.values() and is_number(right):
            given = f"quantity({json.dumps(right.text(text))})"
            return f"write {compared(f'quantity({left})', operator, given)}; devices have {trait.shown()}"
        return f"write it in quotes: {json.dumps(right.text(text))}; devices have {trait.shown()}"
    lists = [of for of in trait.types if of.startswith("list of ")]
    if lists:
        return f"write {left}.includes({right.text(text)})"
    return f"devices have {trait.shown()}"


def _is_quantity_text(value: object) -> bool:
    try:
        return isinstance(value, str) and Quantity(value) is not None
    except InvalidQuantity:
        return False


def _with_article(noun: str) -> str:
    return f"{'an' if noun[:1] in 'aeiou' else 'a'} {noun}"


def _listed(names: Iterator[str] | frozenset[str] | set[str] | Mapping[str, object]) -> str:
    found = sorted(names)
    return ", ".join([*found[:8], "…"] if len(found) > 8 else found) or "none"


_ELEMENT_TYPES: Final = {"ints": "int", "bools": "bool", "strings": "string", "versions": "version"}
_QUANTITY: Final = "quantity"
_SHOWN: Final = 6
_REMEMBERED: Final = 200
"""Maximum number of values collected of an attribute."""
_Published: TypeAlias = v1.DeviceAttribute | v1.DeviceCapacity


class _OfDriver:
    """The slices of one driver; usual devices, which are most, are known by their forms."""

    def __init__(self) -> None:
        self.slices: list[LazySlice] = []

    @cached_property
    def forms(self) -> Collection[DeviceShape]:
        """The forms of its usual devices."""
        usual = [slice_.usual.forms for slice_ in self.slices if slice_.usual is not None]
        return dict.fromkeys(chain.from_iterable(dict.fromkeys(usual)))

    @cached_property
    def models(self) -> Sequence[v1.Device]:
        """The devices of slices that have unusual ones."""
        return [device for slice_ in self.slices if slice_.usual is None for device in slice_.devices]

    def names(self, kind: Kind) -> Iterable[str]:
        """Return the names of its devices' attributes or capacities."""
        of_forms = [tuple(form.types if kind == "attributes" else form.capacity) for form in self.forms]
        of_models = [tuple(device.attributes if kind == "attributes" else device.capacity) for device in self.models]
        return dict.fromkeys(chain.from_iterable(dict.fromkeys((*of_forms, *of_models))))

    def types(self, kind: Kind, name: str) -> Iterator[str]:
        """Yield the types of an attribute or capacity."""
        for form in self.forms:
            if kind == "attributes" and name in form.types:
                yield form.types[name]
            elif kind == "capacity" and name in form.capacity:
                yield _QUANTITY
        yield from (type_ for each in _having(kind, self.models, name) for type_, _ in _typed(each))

    def values(self, kind: Kind, name: str) -> Iterator[Any]:
        """Yield the values of an attribute or capacity."""
        for slice_ in self.slices:
            if slice_.usual is not None and kind == "attributes":
                yield from (value for value in slice_.values(name) if value is not None)
            else:
                for each in _having(kind, slice_.devices, name):
                    for _, values in _typed(each):
                        yield from values


class Trait:
    """An attribute or capacity; its values are collected from the devices on first use."""

    def __init__(self, kind: Kind) -> None:
        self._kind: Final = kind
        self.where: list[tuple[_OfDriver, str]] = []  # drivers whose devices have it, and its name there

    @cached_property
    def types(self) -> frozenset[str]:
        """``bool``, ``int``, ``string``, ``version``, those with ``list of`` before them, or ``quantity``."""
        return frozenset(type_ for devices, name in self.where for type_ in devices.types(self._kind, name))

    @cached_property
    def values(self) -> Collection[Any]:
        """Some distinct values, as CEL writes them."""
        found: dict[Any, None] = {}
        for value in (value for devices, name in self.where for value in devices.values(self._kind, name)):
            found[value] = None
            if len(found) >= _REMEMBERED:
                break
        return found

    def shown(self) -> str:
        """Return some of the values as text."""
        values = [json.dumps(value, ensure_ascii=False) for value in list(self.values)[:_SHOWN]]
        return ", ".join([*values, "…"] if len(self.values) > _SHOWN else values)


@dataclass(frozen=True, eq=False)
class KnownDevice:
    """An example of devices that no selector can distinguish; ``name`` is driver, pool and name."""

    name: str
    driver: str
    device: v1.Device

    @cached_property
    def view(self) -> Device:
        """The device for CEL."""
        return Device(
            driver=self.driver,
            attributes={name: attribute.to_json() for name, attribute in self.device.attributes.items()},
            capacity={name: capacity.value for name, capacity in self.device.capacity.items()},
            allow_multiple_allocations=bool(self.device.allow_multiple_allocations),
        )


def _known(slice_: LazySlice, device: v1.Device) -> KnownDevice:
    driver, pool = slice_.spec.driver, slice_.spec.pool.name
    return KnownDevice(f"{driver}/{pool}/{device.name}", driver, device)


def _having(kind: Kind, devices: Iterable[v1.Device], name: str) -> Iterator[_Published]:
    """Yield the attributes or capacities of a name, each shared object once."""
    seen: set[int] = set()
    for device in devices:
        published: Mapping[str, _Published] = device.attributes if kind == "attributes" else device.capacity
        each = published.get(name)
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            yield each


def _typed(published: _Published) -> Iterator[tuple[str, Iterable[Any]]]:
    """Yield the type of an attribute or capacity, and its values."""
    if isinstance(published, v1.DeviceCapacity):
        yield _QUANTITY, [str(published.value)]
        return
    for type_, value in published.to_json().items():
        if type_ in _ELEMENT_TYPES:
            yield f"list of {_ELEMENT_TYPES[type_]}", value
        else:
            yield type_, [value]


class Advertised:
    """The known devices.

    Args:
        slices: the slices of the devices.
        complete: whether these are all devices of the cluster.

    Attributes:
        drivers: the names of their drivers.

    Raises:
        ValueError: an attribute has a value that no API server accepts.
    """

    def __init__(self, slices: Iterable[LazySlice], *, complete: bool) -> None:
        self.complete = complete
        self._slices = [slice_ for slice_ in slices if len(slice_)]
        self.total: int = sum(map(len, self._slices))
        of_driver: dict[str, _OfDriver] = {}
        for slice_ in self._slices:
            of_driver.setdefault(slice_.spec.driver, _OfDriver()).slices.append(slice_)
            for device in slice_.devices if slice_.usual is None else ():
                if not has_plain_attributes(device):
                    _known(slice_, device).view  # noqa: B018 - raises for values that no API server accepts
        self.drivers: set[str] = set(of_driver)
        self._traits: dict[Kind, dict[str, dict[str, Trait]]] = {"attributes": {}, "capacity": {}}
        for driver, devices in of_driver.items():
            for kind, domains in self._traits.items():
                for name in devices.names(kind):
                    domain, slash, identifier = name.partition("/")
                    if not slash:
                        domain, identifier = driver, name
                    domains.setdefault(domain, {}).setdefault(identifier, Trait(kind)).where.append((devices, name))

    @cached_property
    def distinct(self) -> list[tuple[KnownDevice, int]]:
        """Distinct devices as selectors see them, with their numbers."""
        found: dict[Hashable, tuple[KnownDevice, int]] = {}
        for slice_, device in ((each, device) for each in self._slices for device in each.devices):
            key = (
                slice_.spec.driver,
                tuple([(name, *vars(each).values()) for name, each in device.attributes.items()]),
                tuple([(name, str(each.value)) for name, each in device.capacity.items()]),
                bool(device.allow_multiple_allocations),
            )
            known = found.get(key)
            found[key] = (known[0], known[1] + 1) if known is not None else (_known(slice_, device), 1)
        return list(found.values())

    @cached_property
    def evicting_taints(self) -> Sequence[v1.DeviceTaint]:
        """The taints of devices that evict pods: those with the effect NoExecute."""
        tainted = (slice_ for slice_ in self._slices if slice_.usual is None)
        return [
            taint
            for slice_ in tainted
            for device in slice_.devices
            for taint in device.taints
            if taint.effect == "NoExecute"
        ]

    def domains(self, kind: Kind) -> frozenset[str]:
        """Return the domains in which devices have attributes or capacities."""
        return frozenset(self._traits[kind])

    def names(self, kind: Kind, domain: str) -> dict[str, Trait]:
        """Return the attributes or capacities in a domain, by name."""
        return self._traits[kind].get(domain, {})

    def speaks_for(self, domain: str) -> bool:
        """Return whether all names of a domain or driver are known."""
        return self.complete or domain in self.drivers
