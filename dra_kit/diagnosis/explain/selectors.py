"""Which conditions of selectors a device fails, as reasons, and selectors that no device can match.

A condition is compared with the device's value where it is a simple comparison. ``diagnosis/selector_mistakes`` knows
the mistakes that no device can satisfy.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cached_property, lru_cache
from typing import Final, NamedTuple

from msgspec import Struct

from dra_kit.diagnosis.explain.cluster import ClusterView
from dra_kit.diagnosis.explain.verdicts import JudgedRequest, Reason, ReasonKind, Remedy, RemedyKind, feature
from dra_kit.diagnosis.selector_mistakes.catalogue import mistakes
from dra_kit.diagnosis.selector_mistakes.device_rules import Advertised
from dra_kit.diagnosis.selector_mistakes.expression import (
    COMPARISONS,
    SWAPPED,
    Mistake,
    begin_with_driver,
    blamed,
    check_presence_first,
    compiled,
    conjuncts,
)
from dra_kit.errors import CelCompileError, CelRuntimeError
from dra_kit.kubernetes.allocator.devices import AdvertisedDevice, AdvertisedSlice
from dra_kit.kubernetes.allocator.requests import RequestAlternative
from dra_kit.kubernetes.allocator.selectors import CelEvaluator, Likeness, SliceLikeness, UsualGlimpse, likeness_of
from dra_kit.kubernetes.cel.device import Device
from dra_kit.kubernetes.cel.environment import DeviceEnvironment
from dra_kit.kubernetes.cel.explanation import Conjunct, SelectorExplainer
from dra_kit.kubernetes.cel.failures import CompileFailure
from dra_kit.kubernetes.cel.parser import parse
from dra_kit.kubernetes.cel.program import compile_selector
from dra_kit.kubernetes.cel.tree import CallNode, IdentNode, LiteralNode, SelectNode, SyntaxNode

_SHOWN: Final = 100
_VALUES: Final = 3
_OPPOSITE: Final = {"==": "≠", "!=": "=", "<": "≥", "<=": ">", ">": "≤", ">=": "<"}
_METHODS: Final = {"isGreaterThan": ">", "isLessThan": "<"}
_MAPS: Final = frozenset({"attributes", "capacity"})
_PATH: Final = re.compile(r"""device\s*\.\s*(?:attributes|capacity)\s*\[\s*(?:"[^"]*"|'[^']*')\s*\]\s*\.\s*""")


class SelectorComparison(Struct, frozen=True):
    """A condition that compares one value of the device with a constant.

    Attributes:
        name: the short name of the value: ``memory``.
        path: the value as written.
        sign: the operator, such as ``==``.
        constant: the constant as written: ``"mozzarella"``, ``80Gi``.
    """

    name: str
    path: str
    sign: str
    constant: str


def shorten(text: str) -> str:
    """Shorten conditions: without the paths to attributes, quantities compared like numbers."""
    short = " && ".join(_short(condition) for condition in conditions(text))
    return short if len(short) <= _SHOWN else f"{short[:_SHOWN]}…"


def _short(condition: str) -> str:
    comparison = compared(condition)
    if comparison is not None:
        return f"{comparison.name} {comparison.sign} {comparison.constant}"
    return " ".join(_PATH.sub("", condition).split())


@lru_cache(maxsize=1024)
def conditions(text: str) -> tuple[str, ...]:
    """Return the conditions that a selector joins with ``&&``."""
    try:
        root = parse(text)
    except (CompileFailure, RecursionError):
        return (text,)
    return tuple(node.text(text) for node in conjuncts(root))


@lru_cache(maxsize=1024)
def compared(text: str) -> SelectorComparison | None:
    """Return the comparison of a condition; None if it is not a simple one."""
    try:
        root = parse(text)
    except (CompileFailure, RecursionError):
        return None
    return _comparison(root, text)


def reason_of(conjunct: Conjunct, check: ReasonKind, where: str) -> Reason:
    """Describe why a device fails a condition of ``where``: ``class gpu`` or ``request gpu``."""
    short, remedy, comparison, wanted, wish = _form(conjunct.text, check, where)
    values = dict(conjunct.values)
    details = {
        "condition": conjunct.text,
        "of": where,
        "line": conjunct.line,
        "column": conjunct.column,
        "values": values,
    }
    if conjunct.error:
        details["error"] = conjunct.error
    if comparison is not None and conjunct.result is not None and comparison.path in values:
        found, name = values[comparison.path], comparison.name
        return Reason(
            check,
            f"{name} is {found}, {wish}",
            brief=f"wrong {name}",
            found=found,
            wanted=wanted,
            remedy=remedy,
            details=details,
        )
    text, brief = f"not `{short}`", f"not `{short}`"
    if check is ReasonKind.CLASS:
        text = f"the class requires `{short}`"
    if conjunct.result is None:
        missing = conjunct.missing_key
        text = f"has no {missing}" if missing else f"`{short}` fails: {conjunct.error}"
        brief = f"without {missing}" if missing else f"error in `{short}`"
    elif conjunct.values:
        found_values = ", ".join(f"{_PATH.sub('', path)} is {value}" for path, value in conjunct.values[:_VALUES])
        text = f"{text} ({found_values})"
    return Reason(check, text, brief=brief, remedy=remedy, details=details)


class _Form(NamedTuple):
    """The parts of a reason that are equal for all devices that fail a condition.

    Attributes:
        short: the condition without paths.
        remedy: the removal of the condition.
        comparison: the comparison; None if the condition is not a simple one.
        wanted: the required value after the inverse operator.
        wish: the same in words.
    """

    short: str
    remedy: Remedy
    comparison: SelectorComparison | None
    wanted: str
    wish: str


@lru_cache(maxsize=1024)
def _form(condition: str, check: ReasonKind, where: str) -> _Form:
    short, comparison = shorten(condition), compared(condition)
    of_class = check is ReasonKind.CLASS
    wanted = wish = ""
    if comparison is not None:
        wanted = f"{_OPPOSITE[comparison.sign]} {comparison.constant}"
        wish = _wish(comparison, of_class=of_class)
    kind = RemedyKind.CLASS_CONDITION if of_class else RemedyKind.CLAIM_CONDITION
    remedy = Remedy(kind, f"without `{short}`{f' ({where})' if of_class else ''}", (condition,))
    return _Form(short, remedy, comparison, wanted, wish)


def _wish(comparison: SelectorComparison, *, of_class: bool) -> str:
    equals = comparison.sign == "=="
    verb = "the class requires" if of_class else "not" if equals else "must be"
    return f"{verb} {comparison.constant}" if equals else f"{verb} {comparison.sign} {comparison.constant}"


def _comparison(node: SyntaxNode, text: str) -> SelectorComparison | None:
    if (name := _name(node)) is not None:
        return SelectorComparison(name, node.text(text), "==", "true")
    if not isinstance(node, CallNode):
        return None
    if node.function == "!_" and len(node.arguments) == 1:
        inner = node.arguments[0]
        name = _name(inner)
        return None if name is None else SelectorComparison(name, inner.text(text), "==", "false")
    if node.function in _METHODS and node.target is not None and len(node.arguments) == 1:
        return _between(node.target, _METHODS[node.function], node.arguments[0], text)
    sign = COMPARISONS.get(node.function)
    if sign is None or len(node.arguments) != 2:
        return None
    left, right = node.arguments
    if (
        isinstance(left, CallNode)
        and left.function == "compareTo"
        and left.target is not None
        and len(left.arguments) == 1
    ):
        if isinstance(right, LiteralNode) and right.value == 0:
            return _between(left.target, sign, left.arguments[0], text)
        return None
    return _between(left, sign, right, text) or _between(right, SWAPPED[sign], left, text)


def _between(value: SyntaxNode, sign: str, constant: SyntaxNode, text: str) -> SelectorComparison | None:
    name, written = _name(value), _constant(constant, text)
    return None if name is None or written is None else SelectorComparison(name, value.text(text), sign, written)


def _name(node: SyntaxNode) -> str | None:
    """Return ``driver`` for ``device.driver``, ``memory`` for ``device.capacity["d"].memory``, or else None."""
    if not isinstance(node, SelectNode) or node.test_only:
        return None
    operand = node.operand
    if isinstance(operand, IdentNode):
        # a variable of cel.bind may be the attributes of a domain
        return node.field if operand.name != "device" or node.field not in _MAPS else None
    if not isinstance(operand, CallNode) or operand.function != "_[_]" or len(operand.operands) != 2:
        return None
    base, key = operand.operands
    is_map = isinstance(base, SelectNode) and base.field in _MAPS and isinstance(base.operand, IdentNode)
    return node.field if is_map and isinstance(key, LiteralNode) else None


def _constant(node: SyntaxNode, text: str) -> str | None:
    if isinstance(node, LiteralNode):
        return node.text(text)
    if (
        isinstance(node, CallNode)
        and node.function in {"quantity", "semver"}
        and node.target is None
        and len(node.arguments) == 1
        and isinstance(node.arguments[0], LiteralNode)
    ):
        return str(node.arguments[0].value)
    return None


class _Selector:
    """A selector of ``where`` with a cache of its reasons; devices with equal reads share a reason."""

    def __init__(self, check: ReasonKind, where: str, expression: str, evaluator: CelEvaluator) -> None:
        self.check = check
        self.where = where
        self.expression = expression
        self.reads = evaluator.selector_reads(expression)
        self.known: dict[Likeness, tuple[Reason, ...]] = {}
        self._evaluator = evaluator

    @cached_property
    def explainer(self) -> SelectorExplainer:
        """The explainer of the conditions that a device does not meet.

        Raises:
            CelCompileError: the expression is not valid CEL.
        """
        program = compile_selector(self.expression, environment=self._evaluator.environment)
        return SelectorExplainer(program, self._evaluator.meter)


class _Place(Struct, frozen=True):
    """The position of a usual device whose model is not created yet."""

    slice_: AdvertisedSlice
    position: int


def _at(device: AdvertisedDevice | _Place) -> AdvertisedDevice:
    return device.slice_.devices[device.position] if isinstance(device, _Place) else device


class SelectorMismatches:
    """The selectors of a choice, and the reasons why they do not select devices."""

    def __init__(
        self, cluster: ClusterView, choice: RequestAlternative, evaluator: CelEvaluator, usual: SliceLikeness | None
    ) -> None:
        self._cluster = cluster
        self._evaluator = evaluator
        self._usual = usual
        self._sees_sharing = cluster.gates.variant.knows_sharing
        self._selectors = [_Selector(*each, evaluator) for each in _selectors(choice)]
        self._glimpses: dict[str, list[tuple[_Selector, UsualGlimpse]]] = {}

    def mismatches(self, device: AdvertisedDevice) -> Iterator[Reason]:
        """Explain why a device does not match the request on any node."""
        if (
            device.form is None
            and device.device.binding_conditions
            and not self._cluster.gates.device_binding_and_status
        ):
            yield feature("binding conditions", "DRADeviceBindingConditions")
        yield from self._unmatched(device)

    def _unmatched(self, device: AdvertisedDevice) -> Iterator[Reason]:
        """Explain why selectors do not select a device; once for devices that look the same to a selector."""
        for selector in self._selectors:
            likeness = None
            if device.has_plain_attributes:
                likeness = likeness_of(device, selector.reads, sees_sharing=self._sees_sharing)
            found = selector.known.get(likeness) if likeness is not None else None
            if found is None:
                found = self._unmet(selector, device)
                if likeness is not None:
                    selector.known[likeness] = found
            yield from found
            if found and found[-1].check is ReasonKind.ERROR:
                return

    def of_usual(self, slice_: AdvertisedSlice, seen: Sequence[Likeness]) -> list[tuple[Reason, ...]]:
        """Explain why the selectors reject each usual device of a slice, without creating its model."""
        driver = slice_.spec.driver
        glimpses = self._glimpses.get(driver) or self._glimpses_of(driver)
        found: list[tuple[Reason, ...]] = []
        for position, likeness in enumerate(seen):
            reasons: tuple[Reason, ...] = ()
            for selector, glimpse in glimpses:
                own = glimpse.likeness(likeness)
                known = selector.known.get(own)
                if known is None:
                    device = _Place(slice_, position)
                    known = selector.known[own] = self._unmet(selector, device, glimpse.view(likeness))
                if known:
                    reasons = reasons + known if reasons else known
                    if known[-1].check is ReasonKind.ERROR:
                        break
            found.append(reasons)
        return found

    def _glimpses_of(self, driver: str) -> list[tuple[_Selector, UsualGlimpse]]:
        """Return the view of each selector on usual devices of a driver."""
        usual = self._usual
        assert usual is not None  # noqa: S101 - it gave what is seen
        found = [(selector, UsualGlimpse(selector.reads or (), usual, driver)) for selector in self._selectors]
        self._glimpses[driver] = found
        return found

    def _unmet(
        self, selector: _Selector, device: AdvertisedDevice | _Place, view: Device | None = None
    ) -> tuple[Reason, ...]:
        """Return why a selector does not select a device; empty if it does."""
        check, where, expression = selector.check, selector.where, selector.expression
        try:
            explainer = selector.explainer
            view = view or self._view(_at(device))
            # what does not cost too much as a whole is what its conditions are, where none of them fails
            found = explainer.unmet(view) if explainer.is_admitted else None
            if found is None or None in [conjunct.result for conjunct in found]:
                if self._evaluator.selects(expression, _at(device), sees_sharing=self._sees_sharing):
                    return ()
                found = explainer.unmet(view) if found is None else found
        except CelCompileError as error:
            text, remedy_ = f"a selector of {where} is not valid CEL: {error}", self._remedy(expression, where)
            return (Reason(ReasonKind.ERROR, text, brief=f"invalid selector of {where}", remedy=remedy_),)
        except CelRuntimeError as error:
            return (_error(error, where, expression, self._remedy(expression, where, _at(device))),)
        return tuple([reason_of(conjunct, check, where) for conjunct in found])

    def _remedy(self, expression: str, where: str, device: AdvertisedDevice | None = None) -> Remedy:
        """Return what to write instead of a selector that fails for a device, or for all (None)."""
        help_ = next(
            (
                mistake.help
                for mistake in _mistakes(expression, self._cluster.advertised, self._evaluator.environment)
                if mistake.help
            ),
            "",
        )
        if not help_ and device is not None:
            with suppress(CelRuntimeError):
                view, parsed = self._view(device), compiled(expression, self._evaluator.environment)
                read = blamed(parsed, view)
                if read is not None:
                    help_ = (check_presence_first if read.domain == view.driver else begin_with_driver)(parsed, read)
        text = _marked(help_, where) if help_ else f"with a selector of {where} that does not fail"
        return Remedy(RemedyKind.SELECTOR, text, (expression,))

    def _view(self, device: AdvertisedDevice) -> Device:
        return self._evaluator.view(device, sees_sharing=self._sees_sharing)


def _error(error: CelRuntimeError, where: str, expression: str, remedy: Remedy) -> Reason:
    text, brief = f"a selector of {where} fails: {error.message}", f"error in a selector of {where}"
    if error.kind == "no-such-key":
        text, brief = f"has no {error.key}, which a selector of {where} reads without has()", f"without {error.key}"
    return Reason(ReasonKind.ERROR, text, brief=brief, remedy=remedy, details={"selector": expression})


def wrong_selectors(cluster: ClusterView, requests: Sequence[JudgedRequest]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the mistakes in the selectors of a claim that gets no devices, and their remedies."""
    environment = DeviceEnvironment(version=cluster.gates.version)
    choices = [judged for request in requests for judged in request.choices]
    found: list[str] = []
    remedies: list[str] = []
    for judged in choices:
        if judged.choice is None or not judged.devices:
            continue
        reasons = [reason for verdict in judged.devices for reason in verdict.reasons]
        failed = [each.remedy.text for each in reasons if each.remedy and each.remedy.kind is RemedyKind.SELECTOR]
        if failed or not any(verdict.matches for verdict in judged.devices):
            for _, where, text in _selectors(judged.choice):
                for mistake in _mistakes(text, cluster.advertised, environment):
                    found.append(f"{where}: {mistake.message}")
                    remedies += [_marked(mistake.help, where)] if mistake.help else []
            remedies += failed
    return tuple(dict.fromkeys(found)), tuple(dict.fromkeys(remedies))


def _selectors(choice: RequestAlternative) -> Iterator[tuple[ReasonKind, str, str]]:
    """Yield the selectors that a device must pass, each with the class or request that it belongs to."""
    class_name = f"class {choice.device_class.metadata.name}"
    yield from ((ReasonKind.CLASS, class_name, expression) for expression in choice.class_selectors)
    yield from ((ReasonKind.SELECTOR, f"request {choice.name}", expression) for expression in choice.selectors)


@lru_cache(maxsize=64)
def _mistakes(expression: str, advertised: Advertised | None, environment: DeviceEnvironment) -> tuple[Mistake, ...]:
    return tuple(mistakes(compiled(expression, environment), advertised))


def _marked(help_: str, where: str) -> str:
    return f"{help_} ({where})"
