"""Converts what a preparer returned into one CDI spec for the claim."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from dra_kit.author.prepared import ContainerEdits, Hook, IntelRdt, Mount, Prepared
from dra_kit.errors import PermanentError
from dra_kit.kubelet.cdi import spec as cdi
from dra_kit.kubelet.cdi.spec import check_qualified_name, validate_spec
from dra_kit.kubelet.cdi.store import claim_device_name, claim_kind
from dra_kit.kubernetes.resource import v1
from dra_kit.kubernetes.resource.config import base_request

Result = v1.DeviceRequestAllocationResult


def build_claim_spec(
    driver: str,
    uid: str,
    items: Sequence[tuple[Result, Prepared]],
    mounts: Sequence[Mount | None],
    guard: Mount | None = None,
) -> tuple[cdi.Spec | None, list[tuple[str, ...]]]:
    """Return the spec of a claim and, for each device, the CDI names that the kubelet gets.

    Edits of a device are stored under its name. Edits of the claim are in the spec's own part, which a container gets
    once. A device without edits needs no CDI device. ``mounts`` are the framework's own: one for a device, or None.
    With ``guard``, each container of the claim gets this mount, and for each of its devices a variable that identifies
    the device (:func:`device_variable`).

    Raises:
        PermanentError: an edit violates a rule of CDI, or two devices contradict each other.
    """
    _no_contradictions(items)
    claim_edits = _merged([prepared.claim_edits for _, prepared in items if prepared.claim_edits is not None])
    if guard is not None:
        claim_edits = claim_edits.model_copy(update={"mounts": (*claim_edits.mounts, _mount(guard))})
    kind = claim_kind(driver)
    devices: list[cdi.CDIDevice] = []
    names: list[tuple[str, ...]] = []
    for index, ((result, prepared), mount) in enumerate(zip(items, mounts, strict=True)):
        edits = _edits(prepared if mount is None else prepared.model_copy(update={"mounts": [*prepared.mounts, mount]}))
        if guard is not None:
            edits = edits.model_copy(update={"env": (*edits.env, f"{device_variable(driver, uid, index)}={kind}")})
        elif edits.is_empty and not claim_edits.is_empty:
            # CDI has no empty devices, and without a device no container would get the claim's edits
            edits = cdi.SpecEdits(env=(f"{_claim_variable(driver, uid)}={kind}",))
        own: tuple[str, ...] = ()
        if not edits.is_empty:
            name = claim_device_name(
                uid, request=result.request, pool=result.pool, device=result.device, share_id=result.share_id or ""
            )
            devices.append(cdi.CDIDevice(name=name, container_edits=edits))
            own = (f"{kind}={name}",)
        names.append((*own, *map(check_qualified_name, prepared.cdi_devices)))
    if not devices:
        return None, names
    spec = cdi.build_spec(kind, tuple(devices), container_edits=claim_edits)
    problems = validate_spec(spec)
    if problems:
        raise PermanentError(
            f"prepare returned edits that CDI does not allow: {'; '.join(str(problem) for problem in problems)}",
            code="invalid-edits",
        )
    return spec, names


def device_variable(driver: str, uid: str, index: int) -> str:
    """Return the variable of a container with a device of a guarded claim: its place among the driver's results.

    It is for runtimes that report no CDI devices to NRI plugins. The container's author can set it, too.
    """
    return f"{_claim_variable(driver, uid)}_{index}"


def _claim_variable(driver: str, uid: str) -> str:
    """Return a variable that no other driver sets, because a claim can have devices of several."""
    return re.sub("[^A-Z0-9]", "_", f"DRA_CLAIM_{uid}_{driver}".upper())


def _edits(edits: ContainerEdits) -> cdi.SpecEdits:
    return cdi.SpecEdits(
        env=tuple([f"{name}={value}" for name, value in edits.env.items()]),
        device_nodes=tuple([cdi.DeviceNode(**node.model_dump(exclude_none=True)) for node in edits.device_nodes]),
        net_devices=tuple([cdi.NetDevice(**device.model_dump()) for device in edits.net_devices]),
        hooks=tuple(map(_hook, edits.hooks)),
        mounts=tuple(map(_mount, edits.mounts)),
        intel_rdt=None if edits.intel_rdt is None else _intel_rdt(edits.intel_rdt),
        additional_gids=tuple(edits.additional_gids),
    )


def _intel_rdt(rdt: IntelRdt) -> cdi.IntelRdt:
    schemata = None if rdt.schemata is None else tuple(rdt.schemata)
    return cdi.IntelRdt(**{**rdt.model_dump(), "schemata": schemata})


def _mount(mount: Mount) -> cdi.Mount:
    return cdi.Mount(
        host_path=mount.host_path,
        container_path=mount.container_path,
        options=tuple(mount.effective_options),
        type=mount.type or "",
    )


def _hook(hook: Hook) -> cdi.Hook:
    return cdi.Hook(
        hook_name=hook.hook_name, path=hook.path, args=tuple(hook.args), env=tuple(hook.env), timeout=hook.timeout
    )


def _merged(parts: Sequence[ContainerEdits]) -> cdi.SpecEdits:
    """Return the claim's edits as each device gave them; equal edits of several devices occur once."""
    if not parts:
        return cdi.NO_EDITS
    merged = cdi.merge_edits(map(_edits, parts))
    lists = {field: values for field, values in merged if isinstance(values, tuple)}
    return merged.model_copy(update={field: tuple(dict.fromkeys(values)) for field, values in lists.items()})


def _no_contradictions(items: Sequence[tuple[Result, Prepared]]) -> None:
    """Reject edits for one container that set the same thing differently.

    A container gets all devices of the requests that it names, and always the claim's edits. Devices of different
    requests may differ, because a container may name only one of them.

    Raises:
        PermanentError: naming both devices and the conflict (code ``edits-conflict``).
    """
    of_claim: dict[tuple[str, ...], _Set] = {}
    for result, prepared in items:
        for what, value in _settings(prepared.claim_edits):
            own = _Set(result, value, of_claim=True)
            _agree(of_claim.setdefault(what, own), own, what[0])
    of_request: dict[str, dict[tuple[str, ...], _Set]] = {}
    for result, prepared in items:
        seen = of_request.setdefault(base_request(result.request), {})
        for what, value in _settings(prepared):
            own = _Set(result, value, of_claim=False)
            _agree(of_claim.get(what, own), own, what[0])
            _agree(seen.setdefault(what, own), own, what[0])


class _Set(Struct, frozen=True):
    """A value that a device, or the claim's edits returned with it, sets."""

    result: Result
    value: object
    of_claim: bool

    @property
    def device(self) -> str:
        return f"{self.result.pool}/{self.result.device}"


def _agree(one: _Set, other: _Set, what: str) -> None:
    if one.value == other.value:
        return
    if one.of_claim and not other.of_claim:
        owner = "its claim_edits" if one.device == other.device else f"the claim_edits of device {one.device}"
        who = f"device {other.device} and {owner}"
    elif one.of_claim:
        who = f"the claim_edits of devices {one.device} and {other.device}"
    elif one.result is other.result:
        who = f"the edits of device {one.device}"
    else:
        who = f"devices {one.device} and {other.device} of request {base_request(one.result.request)}"
    raise PermanentError(
        f"{who} set {what} differently; name it after the device (device.env_name), or put it into claim_edits once",
        code="edits-conflict",
    )


def _settings(edits: ContainerEdits | None) -> Iterator[tuple[tuple[str, ...], object]]:
    """Yield each setting: its key, its readable name, and its value."""
    if edits is None:
        return
    env: Mapping[str, str] = edits.env
    for name, value in env.items():
        yield (f"variable {name}",), value
    for mount in edits.mounts:
        yield (f"mount {mount.container_path}",), _mount(mount)
    for node in edits.device_nodes:
        yield (f"device node {node.path}",), node
    for net in edits.net_devices:
        yield (f"network interface {net.name}",), net
    for hook in edits.hooks:
        # the same program with other arguments is another hook: vendor tools have a dozen with one path
        yield (f"{hook.hook_name} hook {hook.path}", *hook.args), _hook(hook)
    if edits.intel_rdt is not None:
        yield ("intel_rdt",), edits.intel_rdt
