"""Requests and the classes they name; selectors of both, evaluated one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile

from msgspec import Struct

from dra_kit.diagnosis.selector_mistakes.catalogue import driver_of
from dra_kit.diagnosis.selector_mistakes.device_rules import KnownDevice
from dra_kit.diagnosis.selector_mistakes.expression import Expression, Mistake, compiled
from dra_kit.errors import CelCompileError, CelRuntimeError
from dra_kit.kubernetes.cel.environment import STORED
from dra_kit.kubernetes.cel.program import Selector, compile_selector
from dra_kit.kubernetes.resource import v1
from dra_kit.lint.devices.matching import Chain, evaluated, foreign_devices, is_about, passes
from dra_kit.lint.fixes.remedy import Rewrite
from dra_kit.lint.structure.fields import Problem
from dra_kit.lint.structure.manifest import Manifest
from dra_kit.lint.surroundings import Surroundings
from dra_kit.text import did_you_mean, unambiguous_correction


class WrittenChoice(Struct, frozen=True):
    """A choice to satisfy a request, as it is written: its only one, or a subrequest.

    Attributes:
        request: its name, of a subrequest ``request/subrequest``.
        path: of the field.
        asked: what is asked for, with the defaults of the API server.
    """

    request: str
    path: str
    asked: v1.ExactDeviceRequest | v1.DeviceSubRequest


def known_classes(manifests: Sequence[Manifest], surroundings: Surroundings) -> dict[str, v1.DeviceClass | None]:
    """Return the classes of the cluster and the files, those of the files first; None where the files have several."""
    found: dict[str, v1.DeviceClass | None] = {}
    for made in manifests:
        if isinstance(made.obj, v1.DeviceClass) and made.name:
            same = made.name not in found or found[made.name] == made.obj
            found[made.name] = made.obj if same else None
    return {**surroundings.classes, **found}


def class_problems(
    manifest: Manifest, classes: Mapping[str, v1.DeviceClass | None], surroundings: Surroundings
) -> Iterator[Problem]:
    """Yield requests of classes that do not exist."""
    for body in written_choices(manifest):
        if not body.asked.device_class_name or body.asked.device_class_name in classes:
            continue
        wish = did_you_mean(body.asked.device_class_name, classes).removeprefix("; ")
        if wish or surroundings.complete:
            wish = wish or (f"there are {', '.join(sorted(classes))}" if classes else "")
            text = f"no DeviceClass {body.asked.device_class_name} is known"
            # a cluster of which nothing is known may have that very class
            intended = unambiguous_correction(body.asked.device_class_name, classes) if surroundings.complete else ""
            sure = (Rewrite(f"{body.path}.deviceClassName", intended),) if intended else ()
            yield Problem(f"{body.path}.deviceClassName", "unknown-class", text, wish, remedies=sure)


def selector_mistakes(
    manifest: Manifest,
    expressions: Sequence[Expression],
    classes: Mapping[str, v1.DeviceClass | None],
    surroundings: Surroundings,
) -> Iterator[tuple[Expression, Mistake]]:
    """Yield what the selectors of a class or a claim's requests do when they are evaluated."""
    if isinstance(manifest.obj, v1.DeviceClass):
        own = [expression for expression in expressions if expression.path.startswith("spec.selectors[")]
        yield from _evaluated((), own, surroundings)
        return
    found: list[tuple[str, Expression, Mistake]] = []
    vain: dict[str, bool] = {}  # by the list of alternatives of a request: whether none of them is met
    for body in written_choices(manifest):
        own = [one for one in expressions if one.path.startswith((f"{body.path}.selectors[", _flat(body.path)))]
        device_class = classes.get(body.asked.device_class_name)
        if device_class is None:
            continue  # nobody knows which devices the class leaves
        before, mistakes = selectors_of(device_class.spec.selectors), list[tuple[Expression, Mistake]]()
        if before is not None and own and _leaves_any(before, surroundings):
            mistakes += _evaluated(before, own, surroundings)
        alternatives = body.path.rpartition("[")[0]
        found += [(alternatives, *one) for one in mistakes]
        unmet = any(mistake.rule == "matches-nothing" for _, mistake in mistakes)
        vain[alternatives] = vain.get(alternatives, True) and unmet
    for alternatives, expression, mistake in found:
        # one that is not met here is what the next one is for
        if mistake.rule != "matches-nothing" or not alternatives.endswith(".firstAvailable") or vain[alternatives]:
            yield expression, mistake


def drivers_intended(
    manifest: Manifest, expressions: Sequence[Expression], classes: Mapping[str, v1.DeviceClass | None]
) -> dict[str, str]:
    """Return the drivers of the devices that expressions read, by path, as far as other selectors show them."""
    found: dict[str, set[str]] = {}
    for expression in expressions:
        found.setdefault(expression.path.rpartition("[")[0], set()).add(driver_of(expression))
    for body in written_choices(manifest):
        device_class = classes.get(body.asked.device_class_name)
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
    """Return the same in v1beta1."""
    return f"{path.removesuffix('.exactly')}.selectors["


def _evaluated(
    before: tuple[Selector, ...], own: Sequence[Expression], surroundings: Surroundings
) -> Iterator[tuple[Expression, Mistake]]:
    compiled = list(takewhile(lambda expression: expression.program is not None, own))
    programs = [expression.program for expression in compiled if isinstance(expression.program, Selector)]
    if not programs:
        return
    chain = Chain((*before, *programs), tuple(compiled))
    drivers = surroundings.advertised.drivers if surroundings.advertised is not None else ()
    foreign = list(foreign_devices(chain, drivers))
    yield from foreign
    if surroundings.advertised is not None and surroundings.advertised.total:
        yield from evaluated(chain, surroundings.advertised, foreign_reported=bool(foreign))


def _leaves_any(programs: Sequence[Selector], surroundings: Surroundings) -> bool:
    """Return whether a class leaves any known device: what is wrong with the class is reported of the class."""
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


def selectors_for(choice: WrittenChoice, device_class: v1.DeviceClass) -> tuple[v1.DeviceSelector, ...]:
    """Return the selectors that a device must pass for a choice: those of its class, then its own."""
    return (*device_class.spec.selectors, *choice.asked.selectors)


def known_matching(
    selectors: Sequence[v1.DeviceSelector], surroundings: Surroundings
) -> Sequence[tuple[KnownDevice, int]]:
    """Return the known devices that pass selectors, with their numbers; none if there may be others."""
    programs, advertised = selectors_of(selectors), surroundings.advertised
    if advertised is None or programs is None or not is_about(programs, advertised):
        return ()
    return [(device, number) for device, number in advertised.distinct if passes(programs, device.view)]


def written_choices(manifest: Manifest) -> Iterator[WrittenChoice]:
    """Yield the requests of a claim or template, and the ways to satisfy them."""
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
