"""Checks of classes and selectors against known devices."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any, Final

from msgspec import Struct, field

from dra_kit.author.config import ConfigDecoder
from dra_kit.diagnosis.lint.objects import LintedObject
from dra_kit.diagnosis.lint.structure import FieldProblem, correction
from dra_kit.diagnosis.selector_mistakes.catalogue import driver_of
from dra_kit.diagnosis.selector_mistakes.device_rules import Advertised, KnownDevice
from dra_kit.diagnosis.selector_mistakes.expression import (
    ManifestExpression,
    Mistake,
    Read,
    Role,
    begin_with_driver,
    blamed,
    character_index,
    check_presence_first,
    compiled,
    guarded,
    plain_reads,
    reads,
    string_constant,
)
from dra_kit.errors import CelCompileError, CelRuntimeError
from dra_kit.kubernetes.cel.device import Device
from dra_kit.kubernetes.cel.environment import STORED
from dra_kit.kubernetes.cel.explanation import explain
from dra_kit.kubernetes.cel.program import Selector, compile_selector
from dra_kit.kubernetes.cel.tree import LiteralNode, walk
from dra_kit.kubernetes.release import Release
from dra_kit.kubernetes.resource import v1
from dra_kit.kubernetes.resource.validation.claims import environment
from dra_kit.text import did_you_mean, name_of_typo, suggest_names


class WrittenChoice(Struct, frozen=True):
    """A request, or an alternative of it (``request/subrequest``), in a manifest, with the API's defaults."""

    request: str
    path: str
    asked: v1.ExactDeviceRequest | v1.DeviceSubRequest


def known_classes(manifests: Sequence[LintedObject], surroundings: LintContext) -> dict[str, v1.DeviceClass | None]:
    """Return the classes of the cluster and the files, which take precedence; None for ambiguous ones."""
    found: dict[str, v1.DeviceClass | None] = {}
    for made in manifests:
        if isinstance(made.obj, v1.DeviceClass) and made.name:
            same = made.name not in found or found[made.name] == made.obj
            found[made.name] = made.obj if same else None
    return {**surroundings.classes, **found}


def class_problems(manifest: LintedObject, surroundings: LintContext) -> Iterator[FieldProblem]:
    """Yield requests of classes that do not exist; if there may be others, only probable typos of known ones."""
    classes = surroundings.classes
    for body in written_choices(manifest):
        name = body.asked.device_class_name
        if not name or name in classes:
            continue
        path, text = f"{body.path}.deviceClassName", f"no DeviceClass {name} is known"
        if surroundings.complete:
            wish = suggest_names(name, classes)
            wish = wish or (f"there are {', '.join(sorted(classes))}" if classes else "")
            yield FieldProblem(path, "unknown-class", text, wish, remedies=correction(path, name, classes))
        elif known := name_of_typo(name, classes):
            yield FieldProblem(path, "unknown-class", text, f'did you mean "{known}"?')


def selector_mistakes(
    manifest: LintedObject, expressions: Sequence[ManifestExpression], surroundings: LintContext
) -> Iterator[tuple[ManifestExpression, Mistake]]:
    """Yield the mistakes that the evaluation of a class's or claim's selectors shows."""
    if isinstance(manifest.obj, v1.DeviceClass):
        own = [expression for expression in expressions if expression.path.startswith("spec.selectors[")]
        yield from _evaluated((), own, surroundings)
        return
    found: list[tuple[str, ManifestExpression, Mistake]] = []
    vain: dict[str, bool] = {}  # whether no alternative in a list is satisfied
    for body in written_choices(manifest):
        own = [one for one in expressions if one.path.startswith((f"{body.path}.selectors[", _flat(body.path)))]
        device_class = surroundings.class_of(body)
        if device_class is None:
            continue  # the devices that the class selects are unknown
        before, mistakes = selectors_of(device_class.spec.selectors), list[tuple[ManifestExpression, Mistake]]()
        if before is not None and own and _leaves_any(before, surroundings):
            mistakes += _evaluated(before, own, surroundings)
        alternatives = body.path.rpartition("[")[0]
        found += [(alternatives, *one) for one in mistakes]
        unmet = any(mistake.rule == "matches-nothing" for _, mistake in mistakes)
        vain[alternatives] = vain.get(alternatives, True) and unmet
    for alternatives, expression, mistake in found:
        # the next alternative may be satisfied
        if mistake.rule != "matches-nothing" or not alternatives.endswith(".firstAvailable") or vain[alternatives]:
            yield expression, mistake


def drivers_intended(
    manifest: LintedObject, expressions: Sequence[ManifestExpression], surroundings: LintContext
) -> dict[str, str]:
    """Return the drivers of the devices that expressions read, by path, if other selectors determine them."""
    found: dict[str, set[str]] = {}
    for expression in expressions:
        found.setdefault(expression.path.rpartition("[")[0], set()).add(driver_of(expression))
    for body in written_choices(manifest):
        device_class = surroundings.class_of(body)
        for selector in device_class.spec.selectors if device_class is not None else ():
            named = driver_of(compiled(selector.cel.expression, STORED)) if selector.cel is not None else ""
            for path in (f"{body.path}.selectors", _flat(body.path).removesuffix("[")):
                found.get(path, set()).add(named)
    named_once = {path: drivers - {""} for path, drivers in found.items()}
    return {
        expression.path: next(iter(drivers))
        for expression in expressions
        if len(drivers := named_once[expression.path.rpartition("[")[0]]) == 1
    }


def _flat(path: str) -> str:
    """Return the path of selectors in v1beta1."""
    return f"{path.removesuffix('.exactly')}.selectors["


def _evaluated(
    before: tuple[Selector, ...], own: Sequence[ManifestExpression], surroundings: LintContext
) -> Iterator[tuple[ManifestExpression, Mistake]]:
    compiled = list(takewhile(lambda expression: expression.program is not None, own))
    programs = [expression.program for expression in compiled if isinstance(expression.program, Selector)]
    if not programs:
        return
    chain = SelectorChain((*before, *programs), tuple(compiled))
    drivers = surroundings.advertised.drivers if surroundings.advertised is not None else ()
    foreign = list(foreign_devices(chain, drivers))
    yield from foreign
    if surroundings.advertised is not None and surroundings.advertised.total:
        yield from evaluated(chain, surroundings.advertised, foreign_reported=bool(foreign))


def _leaves_any(programs: Sequence[Selector], surroundings: LintContext) -> bool:
    """Return whether any known device passes a class, whose problems are reported separately."""
    advertised = surroundings.advertised
    if advertised is None or not advertised.total:
        return True
    for device, _ in advertised.distinct:
        try:
            if all(program.matches(device.view) for program in programs):
                return True
        except CelRuntimeError:
            return False
    return False


def selectors_of(selectors: Sequence[v1.DeviceSelector]) -> tuple[Selector, ...] | None:
    """Return the selectors of a class or request, compiled; None if one of them cannot be."""
    made = []
    for selector in selectors:
        if selector.cel is None:
            return None
        try:
            made.append(compile_selector(selector.cel.expression))
        except CelCompileError:
            return None
    return tuple(made)


def known_devices(choice: WrittenChoice, surroundings: LintContext) -> Sequence[tuple[KnownDevice, int]]:
    """Return the known devices for a choice, with their numbers; none if there may be others."""
    device_class = surroundings.class_of(choice)
    if device_class is None:
        return ()
    return known_matching((*device_class.spec.selectors, *choice.asked.selectors), surroundings)


def known_matching(
    selectors: Sequence[v1.DeviceSelector], surroundings: LintContext
) -> Sequence[tuple[KnownDevice, int]]:
    """Return the known devices that pass selectors, with their numbers; none if there may be others."""
    programs, advertised = selectors_of(selectors), surroundings.advertised
    if advertised is None or programs is None or not is_about(programs, advertised):
        return ()
    return [(device, number) for device, number in advertised.distinct if passes(programs, device.view)]


def written_choices(manifest: LintedObject) -> Iterator[WrittenChoice]:
    """Yield the requests of a claim or template, and their alternatives."""
    if manifest.claim is None:
        return
    path, spec = manifest.claim
    for index, request in enumerate(spec.devices.requests):
        where = f"{path}.devices.requests[{index}]"
        if request.exactly is not None:
            yield WrittenChoice(request.name, f"{where}.exactly", request.exactly)
        for number, alternative in enumerate(request.first_available):
            name = f"{request.name}/{alternative.name}"
            yield WrittenChoice(name, f"{where}.firstAvailable[{number}]", alternative)


class LintContext(Struct, frozen=True):
    """What is known in addition to the files.

    Attributes:
        release: of the API server, with its feature gates.
        advertised: the known devices, if any.
        classes: DeviceClasses by name: those of the cluster, and during a check those of the files; None if ambiguous.
        complete: whether ``classes`` are all classes of the cluster.
        configs: decoders of opaque configuration, by driver.
    """

    release: Release
    advertised: Advertised | None = None
    classes: Mapping[str, v1.DeviceClass | None] = field(default_factory=dict)
    complete: bool = False
    configs: Mapping[str, ConfigDecoder[Any]] = field(default_factory=dict)

    def class_of(self, choice: WrittenChoice) -> v1.DeviceClass | None:
        """Return the class of a choice; None if it is unknown or ambiguous."""
        return self.classes.get(choice.asked.device_class_name)


FOREIGN: Final = Device(driver="another-driver.invalid")
"""A device of a driver that no selector names."""
_EXPLAINED: Final = 500
"""Maximum number of devices that are explained by condition."""


class SelectorChain(Struct, frozen=True):
    """Selectors in evaluation order: of the class, then of the request, whose ``expressions`` are reported."""

    programs: tuple[Selector, ...]
    expressions: tuple[ManifestExpression, ...]

    @property
    def before(self) -> tuple[Selector, ...]:
        """The first selectors, which are defined elsewhere."""
        return self.programs[: len(self.programs) - len(self.expressions)]


def foreign_devices(chain: SelectorChain, drivers: Collection[str]) -> Iterator[tuple[ManifestExpression, Mistake]]:
    """Yield the selector that fails for devices of another driver, which makes the allocation fail."""
    failed = _failure(chain, FOREIGN)
    if failed is None:
        return
    expression, error = failed
    read = next(plain_reads(expression), None)
    if error.kind != "no-such-key" or read is None or read.domain is None:
        return
    message = f"this fails for a device of another driver ({error.message}), and with it the allocation"
    fix = guarded(expression, read.domain) if read.domain in drivers else ()
    yield expression, Mistake("foreign-devices", *_span(read), message, begin_with_driver(expression, read), fix)


def evaluated(
    chain: SelectorChain, advertised: Advertised, *, foreign_reported: bool
) -> Iterator[tuple[ManifestExpression, Mistake]]:
    """Yield the mistakes that the evaluation of selectors for the known devices shows.

    With ``foreign_reported``, failures for devices of other drivers are already reported.
    """
    matches, reached = 0, 0
    failures: dict[tuple[int, str, str], list[tuple[KnownDevice, int, CelRuntimeError]]] = {}
    for device, number in advertised.distinct:
        if not passes(chain.before, device.view):
            continue
        reached += number
        failed = _failure(SelectorChain(chain.programs[len(chain.before) :], chain.expressions), device.view)
        if failed is None:
            matches += number if passes(chain.programs, device.view) else 0
            continue
        expression, error = failed
        read = blamed(expression, device.view)
        if read is not None and foreign_reported and read.domain != device.driver:
            continue
        cause = f"{read.kind}/{read.domain}/{read.name}" if read is not None else error.message
        key = (chain.expressions.index(expression), error.kind, cause)
        failures.setdefault(key, []).append((device, number, error))
    for (index, _, _), found in failures.items():
        yield chain.expressions[index], _failed(chain.expressions[index], found, advertised)
    if not matches and not failures and reached and is_about(chain.programs, advertised):
        yield _unmatched(chain, advertised)


def _failed(
    expression: ManifestExpression, found: Sequence[tuple[KnownDevice, int, CelRuntimeError]], advertised: Advertised
) -> Mistake:
    device, _, error = found[0]
    count = sum(number for _, number, _ in found)
    which = f"{count} of {advertised.total} devices, such as {device.name}"
    read = blamed(expression, device.view)
    if read is None or error.kind != "no-such-key":
        message = f"this fails for {which}: {error.message}"
        return Mistake(
            "cel-runtime", 0, len(expression.text), message, "a selector that fails makes the allocation fail"
        )
    message = f"{read.name} is missing on {which}: the selector fails, and with it the allocation"
    return Mistake("optional-attribute", *_span(read), message, check_presence_first(expression, read))


def _unmatched(chain: SelectorChain, advertised: Advertised) -> tuple[ManifestExpression, Mistake]:
    """Return the condition that no device meets."""
    devices = [device for device, _ in advertised.distinct if passes(chain.before, device.view)][:_EXPLAINED]
    many = f"none of the {advertised.total} known devices"
    for expression in chain.expressions:
        program = expression.program
        if not isinstance(program, Selector):
            continue
        explained = [explain(program, device.view).conjuncts for device in devices]
        for number, conjunct in enumerate(explained[0] if explained else ()):
            if not any(conjuncts[number].result for conjuncts in explained):
                start = character_index(expression.text, conjunct.line, conjunct.column)
                end = start + len(conjunct.text)
                return expression, Mistake(
                    "matches-nothing",
                    start,
                    end,
                    f"this is true for {many}",
                    _values(expression, start, end, advertised),
                )
    last = chain.expressions[-1]
    message = f"{many} meets all conditions, although some meet each"
    return last, Mistake("matches-nothing", 0, len(last.text), message, "see dra-kit explain for the verdicts")


def _values(expression: ManifestExpression, start: int, end: int, advertised: Advertised) -> str:
    """Describe the values of devices for a condition."""
    texts = []
    nodes = [node for node in expression.nodes() if start <= node.start and node.end <= end]
    written = list(filter(None, map(string_constant, nodes)))
    for read in reads(expression):
        if start <= read.node.start and read.node.end <= end and read.domain and read.name:
            trait = advertised.names(read.kind, read.domain).get(read.name)
            if trait is not None:
                near = [did_you_mean(text, trait.values) for text in written if text != read.domain]
                texts.append(f"{read.name} is {trait.shown()}{next(filter(None, near), '')}")
    return "; ".join(dict.fromkeys(texts))


def passes(programs: Sequence[Selector], device: Device) -> bool:
    """Return whether a device passes all selectors; a selector that fails rejects it."""
    try:
        return all(program.matches(device) for program in programs)
    except CelRuntimeError:
        return False


def _failure(chain: SelectorChain, device: Device) -> tuple[ManifestExpression, CelRuntimeError] | None:
    """Return the first expression that fails for a device, unless an earlier one is false."""
    if not passes(chain.before, device):
        return None
    for expression, program in zip(chain.expressions, chain.programs[len(chain.before) :], strict=True):
        try:
            if not program.matches(device):
                return None
        except CelRuntimeError as error:
            return expression, error
    return None


def is_about(programs: Sequence[Selector], advertised: Advertised) -> bool:
    """Return whether all matching devices must be among the known ones."""
    if advertised.complete:
        return True
    for program in programs:
        for node in walk(program.root):
            if isinstance(node, LiteralNode) and node.value in advertised.drivers:
                return True
    return False


def _span(read: Read) -> tuple[int, int]:
    return read.node.start, read.node.end


def expressions(manifest: LintedObject, release: Release) -> Iterator[ManifestExpression]:
    """Yield all expressions that an API server of this release evaluates, in order."""
    if not manifest.api_version.startswith("resource.k8s.io/"):
        return
    declarations = environment(release)
    for path, text, role in _texts(manifest.document.body, ""):
        if role == "selector" or "DRADerivedAttributes" in release:
            yield compiled(text, declarations, path=path, role=role)


def _texts(value: Any, path: str) -> Iterator[tuple[str, str, Role]]:
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _texts(item, f"{path}[{index}]")
        return
    if not isinstance(value, Mapping):
        return
    for key, item in value.items():
        where = f"{path}.{key}" if path else key
        if key in {"opaque", "status", "metadata", "attributes", "capacity"}:
            continue  # may contain any keys
        if key == "expression" and isinstance(item, str) and item:
            role: Role = "derived" if ".derivedAttributes[" in path else "selector"
            if role == "derived" or path.endswith(".cel"):
                yield where, item, role
        else:
            yield from _texts(item, where)
