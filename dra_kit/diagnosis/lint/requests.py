"""Checks of requests: counts, capacity, constraints, opaque configurations."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, TypeAlias

from msgspec import Struct

from dra_kit.author.config import OpaqueConfig, describe_for_devices, matches_device
from dra_kit.author.config_problems import ConfigKeyProblem
from dra_kit.diagnosis.lint.devices import LintContext, WrittenChoice, known_devices, known_matching, written_choices
from dra_kit.diagnosis.lint.objects import LintedObject
from dra_kit.diagnosis.lint.structure import FieldProblem, Rewrite, correction
from dra_kit.diagnosis.selector_mistakes.catalogue import STANDARD, STANDARD_DOMAIN
from dra_kit.diagnosis.selector_mistakes.device_rules import Advertised, KnownDevice, unknown_driver
from dra_kit.errors import InvalidConfig
from dra_kit.kubernetes.resource import v1
from dra_kit.kubernetes.resource.config import CONFIG_FIELDS, base_request
from dra_kit.kubernetes.resource.matching import tolerates
from dra_kit.kubernetes.resource.validation.claims import REQUESTS_MAX
from dra_kit.kubernetes.scheduler.controllers import protects
from dra_kit.kubernetes.values.json import value_at
from dra_kit.text import suggest_names


def misplaced_configs(manifest: LintedObject, surroundings: LintContext) -> Iterator[FieldProblem]:
    """Yield configs whose kind no device of their class or request accepts.

    A config is skipped if the devices of a request are unknown or may belong to another driver, and for admin access,
    which gets no config. It is also skipped if a later config, which takes precedence, is for one of the devices.
    """
    if isinstance(manifest.obj, v1.DeviceClass):
        own = _Candidates("", known_matching(manifest.obj.spec.selectors, surroundings))
        for index, entry in enumerate(manifest.obj.spec.config):
            stronger = [later.opaque for later in manifest.obj.spec.config[index + 1 :]]
            yield from _misplaced(f"spec.config[{index}]", entry.opaque, "this class", [(own, stronger)], surroundings)
    elif manifest.claim is not None:
        path, spec = manifest.claim
        choices = [_candidates(choice, surroundings) for choice in written_choices(manifest)]
        for index, config in enumerate(spec.devices.config):
            where, after = f"{path}.devices.config[{index}]", spec.devices.config[index + 1 :]
            for name in config.requests:
                named = [
                    (choice, [later.opaque for later in after if not later.requests or choice.is_any(later.requests)])
                    for choice in choices
                    if choice.is_any([name])
                ]
                yield from _misplaced(where, config.opaque, f"request {name}", named, surroundings)


def refused_replacements(manifest: LintedObject, surroundings: LintContext) -> Iterator[FieldProblem]:
    """Yield configs of a claim that may not replace those of the DeviceClass of a request that they are for."""
    if manifest.claim is None:
        return
    path, spec = manifest.claim
    choices = [choice for choice in written_choices(manifest) if not getattr(choice.asked, "admin_access", None)]
    for index, entry in enumerate(spec.devices.config):
        config = _decoded(entry.opaque, surroundings)
        if config is None or entry.opaque is None:
            continue
        for choice in choices:
            names = {choice.request, base_request(choice.request)}
            device_class = surroundings.class_of(choice)
            if device_class is None or (entry.requests and names.isdisjoint(entry.requests)):
                continue
            of_class = (
                _decoded(each.opaque, surroundings)
                for each in reversed(device_class.spec.config)
                if each.opaque is not None and each.opaque.driver == entry.opaque.driver
            )
            bound = next((each for each in of_class if type(each) is type(config)), None)
            if bound is not None and (reason := bound.refusal_of(config)):
                yield FieldProblem(
                    f"{path}.devices.config[{index}].opaque.parameters",
                    "class-config-replaced",
                    f"{config.kind_} cannot replace that of DeviceClass {choice.asked.device_class_name}, which "
                    f"request {choice.request} asks for",
                    reason,
                )
                break


class _Candidates(Struct, frozen=True):
    """The devices that a request, an alternative, or a class can get.

    Attributes:
        request: its name, for a subrequest ``request/subrequest``; empty for a class.
        devices: known devices, with their number; empty if there may be others, or they get no config.
    """

    request: str
    devices: Sequence[tuple[KnownDevice, int]]

    def is_any(self, requests: Sequence[str]) -> bool:
        """Return whether an entry names it."""
        return not {self.request, base_request(self.request)}.isdisjoint(requests)


def _candidates(choice: WrittenChoice, surroundings: LintContext) -> _Candidates:
    gets_config = not getattr(choice.asked, "admin_access", None)
    return _Candidates(choice.request, known_devices(choice, surroundings) if gets_config else ())


_Stronger: TypeAlias = Sequence[v1.OpaqueDeviceConfiguration | None]


def _misplaced(
    path: str,
    opaque: v1.OpaqueDeviceConfiguration | None,
    whose: str,
    named: Sequence[tuple[_Candidates, _Stronger]],
    surroundings: LintContext,
) -> Iterator[FieldProblem]:
    decoder = surroundings.configs.get(opaque.driver) if opaque is not None else None
    config = _decoded(opaque, surroundings)
    if opaque is None or decoder is None or config is None:
        return
    kind = type(config)
    bad: list[_Candidates] = []
    for candidates, stronger in named:
        devices = [one for one, _ in candidates.devices]
        same = [each for each in stronger if each and each.driver == opaque.driver]
        configs = [config, *(_decoded(each, surroundings) for each in same)]
        if not devices or any(one.driver != opaque.driver for one in devices):
            continue
        # an unknown kind belongs to an entry that is reported already
        if not any(each is None or _takes(device, type(each)) for device in devices for each in configs):
            bad.append(candidates)
    if not bad:
        return
    if len(bad) < len(named):
        whose = f"request {' and '.join(each.request for each in bad)}"
    devices = [one for each in bad for one, _ in each.devices]
    others = [other for other in decoder.kinds if any(_takes(device, other) for device in devices)]
    fitting = [
        each.request for each, _ in named if each not in bad and any(_takes(one, kind) for one, _ in each.devices)
    ]
    text = (
        f"{kind.kind_} is for devices with {describe_for_devices(kind.for_devices_)}, "
        f"but {whose} can get only devices "
        f"such as {devices[0].name}"
    )
    remedy = f"write {' or '.join(other.kind_ for other in others)}" if others else "remove the config"
    place = "request other devices" if whose.startswith("request") else "select other devices"
    if fitting:
        remedy = f"apply it to {' and '.join(fitting)}, {remedy}"
    yield FieldProblem(f"{path}.opaque.parameters.kind", "config-for-other-devices", text, f"{remedy}, or {place}")


def _decoded(opaque: v1.OpaqueDeviceConfiguration | None, surroundings: LintContext) -> OpaqueConfig | None:
    """Return a config; None if its driver is unknown or rejects it."""
    decoder = surroundings.configs.get(opaque.driver) if opaque is not None else None
    if opaque is None or decoder is None:
        return None
    try:
        config: OpaqueConfig = decoder.decode(opaque.parameters)
    except InvalidConfig:
        return None  # reported already
    return config


def _takes(device: KnownDevice, kind: type[OpaqueConfig]) -> bool:
    return matches_device(kind.for_devices_, device.device, device.driver)


def constraint_problems(manifest: LintedObject, surroundings: LintContext) -> Iterator[FieldProblem]:
    """Yield constraints on attributes that no device has, or without the domain of the attribute."""
    if manifest.claim is None:
        return
    advertised = surroundings.advertised
    path, spec = manifest.claim
    derived = {attribute.name for body in written_choices(manifest) for attribute in body.asked.derived_attributes}
    for index, constraint in enumerate(spec.devices.constraints):
        where = f"{path}.devices.constraints[{index}]"
        for field, name in (
            ("matchAttribute", constraint.match_attribute),
            ("distinctAttribute", constraint.distinct_attribute),
        ):
            if name and "/" not in name:
                yield _unqualified(f"{where}.{field}", name, advertised)
            elif name and name not in derived and name.count("/") == 1 and advertised is not None and advertised.total:
                yield from _attribute(f"{where}.{field}", name, advertised)


_OF_SELECTOR: Final = re.compile(
    r"""(?:device\.)?attributes\[["'](?P<domain>[^"']+)["']\](?:\.(?P<name>\w+)|\[["'](?P<key>\w+)["']\])"""
)


def _unqualified(path: str, name: str, advertised: Advertised | None) -> FieldProblem:
    """Return the problem of an attribute without domain; devices or Kubernetes may have it with one."""
    text = f"{name} is not the full name of an attribute, which has a domain and a slash"
    if written := _OF_SELECTOR.fullmatch(name):
        right = f"{written['domain']}/{written['name'] or written['key']}"
        return FieldProblem(path, "unqualified-attribute", text, f"write {right}", remedies=(Rewrite(path, right),))
    domain, _, last = name.rpartition(".")
    if domain:  # a name contains no dot, so the slash is missing
        home = domain if "." in domain else "<domain>"
        return FieldProblem(path, "unqualified-attribute", text, f"write {home}/{last}")
    domains = sorted(advertised.domains("attributes")) if advertised is not None else []
    homes = [
        f"{domain}/{each}"
        for domain in domains
        if advertised is not None
        for each in advertised.names("attributes", domain)
        if each.casefold() == name.casefold()
    ]
    standard = next((each for each in STANDARD if each.casefold() == name.casefold()), "")
    if homes:
        # Kubernetes' own attributes are the same for all drivers
        homes.sort(key=lambda home: not home.startswith(f"{STANDARD_DOMAIN}/"))
        sure = (Rewrite(path, homes[0]),) if len(homes) == 1 else ()
        wish = f"devices have {' and '.join(homes[:3])}: write {homes[0]}"
        return FieldProblem(path, "unqualified-attribute", text, wish, remedies=sure)
    if standard:
        wish = (
            f"write {STANDARD_DOMAIN}/{standard} if the drivers publish this standard attribute, else <driver>/{name}"
        )
    else:
        wish = f"write <domain>/{name}: of an attribute without domain in the slice, the domain is the driver's name"
    return FieldProblem(path, "unqualified-attribute", text, wish)


def _attribute(path: str, name: str, advertised: Advertised) -> Iterator[FieldProblem]:
    domain, _, identifier = name.partition("/")
    known = advertised.names("attributes", domain)
    if identifier in known:
        return
    everywhere = [
        f"{one}/{each}" for one in advertised.domains("attributes") for each in advertised.names("attributes", one)
    ]
    homes = [each for each in everywhere if _identifier(each) == identifier]
    if homes and domain in advertised.drivers:  # a standard attribute such as pcieRoot is in a domain of Kubernetes
        text = f"{identifier} is not an attribute of {domain}: devices have {' and '.join(homes)}"
        own = (Rewrite(path, homes[0]),) if len(homes) == 1 else ()
        yield FieldProblem(path, "unknown-attribute", text, f"write {homes[0]}", remedies=own)
        return
    # names in a long domain all look similar
    likely = [each for each in everywhere if each in homes or suggest_names(identifier, [_identifier(each)])]
    wish = suggest_names(name, likely)
    if wish or advertised.speaks_for(domain):
        text = f"no device has an attribute {name}, so no device satisfies the constraint"
        sure = correction(path, name, everywhere)
        wish = wish or f"they have {', '.join(sorted(everywhere)[:8])}"
        yield FieldProblem(path, "unknown-attribute", text, wish, remedies=sure)


def _identifier(name: str) -> str:
    return name.rpartition("/")[2]


def count_problems(manifest: LintedObject, surroundings: LintContext) -> Iterator[FieldProblem]:
    """Yield requests for zero devices, or for more than there are."""
    for body in written_choices(manifest):
        if body.asked.allocation_mode != "ExactCount":
            continue
        path = f"{body.path}.count"
        written = manifest.document.positions.find(path)
        if written.exact and written.value.value == 0:
            text = "the API server reads count 0 as 1"
            yield FieldProblem(path, "zero-count", text, "write how many devices are needed, or remove the request")
            continue
        known = known_devices(body, surroundings)
        found = sum(number for _, number in known)
        shared = any(device.view.allow_multiple_allocations for device, _ in known)
        if found and not shared and found < body.asked.count:
            there = "1 known device matches" if found == 1 else f"{found} known devices match"
            text = f"{body.asked.count} devices are requested, but only {there}"
            yield FieldProblem(path, "too-few-devices", text, f"write count: {found}")


def toleration_problems(
    manifest: LintedObject, surroundings: LintContext, evicting: Sequence[v1.DeviceTaint]
) -> Iterator[FieldProblem]:
    """Yield tolerations without effect where the eviction controller of the release does not take them for NoExecute.

    Args:
        manifest: the object.
        surroundings: the known devices, whose taints may evict the pod.
        evicting: taints with the effect NoExecute of taint rules in the files.
    """
    known = surroundings.advertised.evicting_taints if surroundings.advertised is not None else ()
    for body in written_choices(manifest):
        for index, toleration in enumerate(body.asked.tolerations):
            any_taint = v1.DeviceTaint(key=toleration.key or "any", value=toleration.value, effect="NoExecute")
            if toleration.effect or protects(toleration, any_taint, surroundings.release.version):
                continue
            path = f"{body.path}.tolerations[{index}]"
            wish = f"name the effect: {_with_effect(toleration)}, and another toleration for NoSchedule"
            # a rule in the files may be for other devices
            taints = (*known, *evicting) if toleration.key else known
            covered = [taint.key for taint in taints if tolerates(toleration, taint)]
            if covered:
                text = f"the toleration names no effect: the NoExecute taint {covered[0]} evicts the pod at once"
                yield FieldProblem(path, "evicted-pod", text, wish)
            else:
                text = "the toleration names no effect: it does not protect the pod from eviction by a NoExecute taint"
                yield FieldProblem(path, "toleration-without-effect", text, wish)


def _with_effect(toleration: v1.DeviceToleration) -> str:
    value = f", value: {toleration.value}" if toleration.value else ""
    key = f"key: {toleration.key}, " if toleration.key else ""
    return f"{{{key}operator: {toleration.operator}{value}, effect: NoExecute}}"


def all_devices_problems(manifest: LintedObject) -> Iterator[FieldProblem]:
    """Yield requests that get nothing because another request of the claim takes all devices of their class."""
    if manifest.claim is None or len(manifest.claim[1].devices.requests) > REQUESTS_MAX:
        return  # the API server rejects it
    bodies = [body for body in written_choices(manifest) if "/" not in body.request and _takes_devices(body)]
    for taker in bodies:
        if taker.asked.allocation_mode != "All":
            continue
        for body in bodies:
            same = body.asked.device_class_name == taker.asked.device_class_name
            if body is taker or not same or not _selectors(taker) <= _selectors(body):
                continue
            text = (
                f"request {taker.request} asks for all devices of DeviceClass {taker.asked.device_class_name}: none is "
                f"left for request {body.request}, unless they allow multiple allocations"
            )
            wish = f"remove request {body.request}, or give {taker.request} a selector or a count"
            yield FieldProblem(f"{taker.path}.allocationMode", "all-devices-twice", text, wish)
            break


def _takes_devices(body: WrittenChoice) -> bool:
    """Return whether a request gets whole devices: not with admin access, and not a capacity of shared ones."""
    return not getattr(body.asked, "admin_access", None) and body.asked.capacity is None


def _selectors(body: WrittenChoice) -> set[str]:
    return {selector.cel.expression for selector in body.asked.selectors if selector.cel is not None}


def capacity_problems(manifest: LintedObject, surroundings: LintContext) -> Iterator[FieldProblem]:
    """Yield requests for a capacity that no device has, or has enough of."""
    for body in written_choices(manifest):
        requests = body.asked.capacity.requests if body.asked.capacity is not None else {}
        if not requests:
            continue
        known = [device.device.capacity for device, _ in known_devices(body, surroundings)]
        for name, asked in requests.items() if known else ():
            path = f"{body.path}.capacity.requests[{name}]"
            there = [capacity[name].value for capacity in known if name in capacity]
            if not there:
                names = sorted({one for capacity in known for one in capacity})
                text = f"{asked} of {name} is requested, but no matching device has a capacity of that name"
                wish = suggest_names(name, names) or (
                    f"they have {', '.join(names)}" if names else "remove the request"
                )
                yield FieldProblem(path, "too-much-capacity", text, wish, key=True)
            elif asked > max(there):
                text = f"{asked} of {name} is requested, but no matching device has more than {max(there)}"
                yield FieldProblem(path, "too-much-capacity", text, f"request at most {max(there)}")


def opaque_config_problems(manifest: LintedObject, surroundings: LintContext) -> Iterator[FieldProblem]:
    """Yield problems of the opaque configurations of an object."""
    fields = CONFIG_FIELDS.get(manifest.kind, ())
    if manifest.obj is None or not fields:
        return
    where = ".".join(fields)
    entries = value_at(manifest.document.body, fields)
    for index, entry in enumerate(entries if isinstance(entries, list) else ()):
        opaque = entry.get("opaque") if isinstance(entry, Mapping) else None
        if not isinstance(opaque, Mapping) or not isinstance(opaque.get("driver"), str):
            continue
        path = f"{where}[{index}].opaque"
        driver = opaque["driver"]
        decoder = surroundings.configs.get(driver)
        # validation reports parameters that are not an object
        if decoder is not None and isinstance(opaque.get("parameters"), Mapping):
            try:
                decoder.decode(opaque["parameters"])
            except InvalidConfig as error:
                for problem in error.problems:
                    below, text = problem
                    field = f"{path}.parameters{'' if not below or below.startswith('[') else '.'}{below}"
                    message = f"{below}: {text}" if below else text
                    yield FieldProblem(field, "opaque-config", message, key=isinstance(problem, ConfigKeyProblem))
                if error.omitted:
                    yield FieldProblem(f"{path}.parameters", "opaque-config", f"… and {error.omitted} more")
        elif decoder is None and surroundings.advertised is not None:
            wish = unknown_driver(driver, surroundings.advertised)
            if wish is not None:
                sure = correction(f"{path}.driver", driver, surroundings.advertised.drivers)
                text = f'no device belongs to a driver "{driver}"'
                yield FieldProblem(f"{path}.driver", "unknown-driver", text, wish, remedies=sure)
