"""Opaque configuration for other devices than those that its request, or its class, can get."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from dra_kit.author.config.for_devices import described, is_for
from dra_kit.author.config.opaque import OpaqueConfig
from dra_kit.errors import InvalidConfig
from dra_kit.lint.devices.classes import WrittenChoice, known_matching, selectors_for, written_choices
from dra_kit.lint.structure.fields import Problem
from dra_kit.lint.structure.manifest import Manifest
from dra_kit.lint.surroundings import Surroundings
from dra_kit.resource import v1
from dra_kit.resource.config import base_request
from dra_kit.resource.mistakes.advertised import KnownDevice


def misplaced_configs(
    manifest: Manifest, classes: Mapping[str, v1.DeviceClass | None], surroundings: Surroundings
) -> Iterator[Problem]:
    """Yield configs whose kind no device takes that the request they name, or their class, can get.

    Nothing is told of requests for which devices are not known, or of which a device of another driver may come: there
    the config is passed over. Nor of admin access, which is given no config.
    """
    if isinstance(manifest.obj, v1.DeviceClass):
        matching = known_matching(manifest.obj.spec.selectors, surroundings)
        for index, entry in enumerate(manifest.obj.spec.config):
            yield from _misplaced(f"spec.config[{index}]", entry.opaque, "this class", matching, surroundings)
    elif manifest.claim is not None:
        path, spec = manifest.claim
        choices = list(written_choices(manifest))
        for index, config in enumerate(spec.devices.config):
            where = f"{path}.devices.config[{index}]"
            for name in config.requests:
                devices = _of_request(name, choices, classes, surroundings)
                yield from _misplaced(where, config.opaque, f"request {name}", devices, surroundings)


def _of_request(
    name: str,
    choices: Sequence[WrittenChoice],
    classes: Mapping[str, v1.DeviceClass | None],
    surroundings: Surroundings,
) -> Sequence[tuple[KnownDevice, int]]:
    """Return the known devices that a request can get, by any of its alternatives; none if there may be others."""
    found: list[tuple[KnownDevice, int]] = []
    for choice in choices:
        if name not in {choice.request, base_request(choice.request)}:
            continue
        device_class = classes.get(choice.asked.device_class_name)
        if device_class is None or getattr(choice.asked, "admin_access", None):
            return ()
        matching = known_matching(selectors_for(choice, device_class), surroundings)
        if not matching:
            return ()
        found += matching
    return found


def _misplaced(
    path: str,
    opaque: v1.OpaqueDeviceConfiguration | None,
    whose: str,
    devices: Sequence[tuple[KnownDevice, int]],
    surroundings: Surroundings,
) -> Iterator[Problem]:
    decoder = surroundings.configs.get(opaque.driver) if opaque is not None else None
    if opaque is None or decoder is None or not devices or any(one.driver != opaque.driver for one, _ in devices):
        return
    try:
        kind: type[OpaqueConfig] = type(decoder.decode(opaque.parameters))
    except InvalidConfig:
        return  # which is told already
    if any(_takes(device, kind) for device, _ in devices):
        return
    others = [other for other in decoder.kinds if any(_takes(device, other) for device, _ in devices)]
    text = (
        f"{kind.kind_} is for devices with {described(kind.for_devices_)}, and {whose} can get none of them, only such "
        f"as {devices[0][0].name}"
    )
    remedy = f"write {' or '.join(other.kind_ for other in others)}" if others else "remove the config"
    place = "ask for other devices" if whose.startswith("request") else "select other devices"
    yield Problem(f"{path}.opaque.parameters.kind", "config-for-other-devices", text, f"{remedy}, or {place}")


def _takes(device: KnownDevice, kind: type[OpaqueConfig]) -> bool:
    return is_for(kind.for_devices_, device.device, device.driver)
