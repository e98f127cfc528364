"""Opaque configuration that the node would refuse for what is around it: the devices of its request, or their class."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from msgspec import Struct

from dra_kit.author.config import OpaqueConfig, describe_for_devices, matches_device
from dra_kit.diagnosis.selector_mistakes.device_rules import KnownDevice
from dra_kit.errors import InvalidConfig
from dra_kit.kubernetes.resource import v1
from dra_kit.kubernetes.resource.config import base_request
from dra_kit.lint.devices.classes import WrittenChoice, known_matching, selectors_for, written_choices
from dra_kit.lint.structure.fields import Problem
from dra_kit.lint.structure.manifest import Manifest
from dra_kit.lint.surroundings import Surroundings


def misplaced_configs(
    manifest: Manifest, classes: Mapping[str, v1.DeviceClass | None], surroundings: Surroundings
) -> Iterator[Problem]:
    """Yield configs whose kind no device takes that their class, or the request they name or its alternative, can get.

    Nothing is told of requests for which devices are not known, or of which a device of another driver may come: there
    the config is passed over. Nor of admin access, which is given no config, nor where a stronger config, one that is
    further down, is for a device: there it is passed over, too.
    """
    if isinstance(manifest.obj, v1.DeviceClass):
        own = [_Candidates("", known_matching(manifest.obj.spec.selectors, surroundings))]
        for index, entry in enumerate(manifest.obj.spec.config):
            stronger = [later.opaque for later in manifest.obj.spec.config[index + 1 :]]
            yield from _misplaced(
                f"spec.config[{index}]", entry.opaque, "this class", [(one, stronger) for one in own], surroundings
            )
    elif manifest.claim is not None:
        path, spec = manifest.claim
        choices = [_candidates(choice, classes, surroundings) for choice in written_choices(manifest)]
        for index, config in enumerate(spec.devices.config):
            where, after = f"{path}.devices.config[{index}]", spec.devices.config[index + 1 :]
            for name in config.requests:
                named = [
                    (choice, [later.opaque for later in after if not later.requests or choice.is_any(later.requests)])
                    for choice in choices
                    if choice.is_any([name])
                ]
                yield from _misplaced(where, config.opaque, f"request {name}", named, surroundings)


def refused_replacements(
    manifest: Manifest, classes: Mapping[str, v1.DeviceClass | None], surroundings: Surroundings
) -> Iterator[Problem]:
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
            device_class = classes.get(choice.asked.device_class_name)
            if device_class is None or (entry.requests and names.isdisjoint(entry.requests)):
                continue
            of_class = (
                _decoded(each.opaque, surroundings)
                for each in reversed(device_class.spec.config)
                if each.opaque is not None and each.opaque.driver == entry.opaque.driver
            )
            bound = next((each for each in of_class if type(each) is type(config)), None)
            if bound is not None and (reason := bound.refusal_of(config)):
                yield Problem(
                    f"{path}.devices.config[{index}].opaque.parameters",
                    "class-config-replaced",
                    f"{config.kind_} cannot replace that of DeviceClass {choice.asked.device_class_name}, which "
                    f"request {choice.request} asks for",
                    reason,
                )
                break


class _Candidates(Struct, frozen=True):
    """What a request, an alternative of one, or a class can get.

    Attributes:
        request: its name, of a subrequest ``request/subrequest``; empty for a class.
        devices: that are known, with their places; none where there may be others, or no config is given.
    """

    request: str
    devices: Sequence[tuple[KnownDevice, int]]

    def is_any(self, requests: Sequence[str]) -> bool:
        """Return whether it is one of those that an entry names."""
        return not {self.request, base_request(self.request)}.isdisjoint(requests)


def _candidates(
    choice: WrittenChoice, classes: Mapping[str, v1.DeviceClass | None], surroundings: Surroundings
) -> _Candidates:
    device_class = classes.get(choice.asked.device_class_name)
    if device_class is None or getattr(choice.asked, "admin_access", None):
        return _Candidates(choice.request, ())
    return _Candidates(choice.request, known_matching(selectors_for(choice, device_class), surroundings))


_Stronger: TypeAlias = Sequence[v1.OpaqueDeviceConfiguration | None]


def _misplaced(
    path: str,
    opaque: v1.OpaqueDeviceConfiguration | None,
    whose: str,
    named: Sequence[tuple[_Candidates, _Stronger]],
    surroundings: Surroundings,
) -> Iterator[Problem]:
    decoder = surroundings.configs.get(opaque.driver) if opaque is not None else None
    kind = _kind(opaque, surroundings)
    if opaque is None or decoder is None or kind is None:
        return
    bad: list[_Candidates] = []
    for candidates, stronger in named:
        devices = [one for one, _ in candidates.devices]
        kinds = [kind, *(_kind(each, surroundings) for each in stronger if each and each.driver == opaque.driver)]
        if not devices or any(one.driver != opaque.driver for one in devices):
            continue
        # a kind that is not known is of an entry that is told already
        if not any(each is None or _takes(device, each) for device in devices for each in kinds):
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
        f"{kind.kind_} is for devices with {describe_for_devices(kind.for_devices_)}, and {whose} can get none of them, only such "
        f"as {devices[0].name}"
    )
    remedy = f"write {' or '.join(other.kind_ for other in others)}" if others else "remove the config"
    place = "ask for other devices" if whose.startswith("request") else "select other devices"
    if fitting:
        remedy = f"name {' and '.join(fitting)} as what it is for, {remedy}"
    yield Problem(f"{path}.opaque.parameters.kind", "config-for-other-devices", text, f"{remedy}, or {place}")


def _kind(opaque: v1.OpaqueDeviceConfiguration | None, surroundings: Surroundings) -> type[OpaqueConfig] | None:
    """Return of which kind a config is; None where that cannot be known."""
    config = _decoded(opaque, surroundings)
    return None if config is None else type(config)


def _decoded(opaque: v1.OpaqueDeviceConfiguration | None, surroundings: Surroundings) -> OpaqueConfig | None:
    """Return a config; None where its driver is not known or refuses it."""
    decoder = surroundings.configs.get(opaque.driver) if opaque is not None else None
    if opaque is None or decoder is None:
        return None
    try:
        config: OpaqueConfig = decoder.decode(opaque.parameters)
    except InvalidConfig:
        return None  # which is told already
    return config


def _takes(device: KnownDevice, kind: type[OpaqueConfig]) -> bool:
    return matches_device(kind.for_devices_, device.device, device.driver)
