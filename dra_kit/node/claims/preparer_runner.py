"""Runs the author's preparer for one claim: from an allocated claim to the record of what was prepared."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, cast

from msgspec import Struct, field
from pydantic import JsonValue

from dra_kit.author.calls import call, describe_raised_error
from dra_kit.author.claim import AllocatedDevice, EffectRequests
from dra_kit.author.config import ConfigDecoder, ConfigEntry, OpaqueConfig, matches_device
from dra_kit.author.device import Device
from dra_kit.author.driver import Driver
from dra_kit.author.effect import may_be_unawaited_effect
from dra_kit.author.prepared import Prepared
from dra_kit.author.preparer import Preparer, default_config_method, resolve_default_config, run_prepare
from dra_kit.errors import (
    ConfigurationError,
    DraKitError,
    InvalidConfig,
    NotYet,
    PermanentError,
    PrepareError,
    TransientError,
)
from dra_kit.kubelet.cdi.edits import build_claim_spec
from dra_kit.kubelet.cdi.spec import DeviceNode, Spec
from dra_kit.kubernetes.resource import v1
from dra_kit.kubernetes.resource.config import base_request
from dra_kit.kubernetes.resource.objects import ClaimReference
from dra_kit.node.claims.guard import HookGuard
from dra_kit.node.claims.metadata import MetadataFiles, metadata_json
from dra_kit.node.claims.reader import AllocatedClaim
from dra_kit.node.claims.status import device_statuses
from dra_kit.node.context import HardwareHandle
from dra_kit.node.effects.engine import ClaimEffects, EffectEngine
from dra_kit.node.effects.verifier import EffectVerifier
from dra_kit.node.slices import ClusterPoolDevices
from dra_kit.node.state.records import ClaimRecord, DeviceRecord
from dra_kit.process.logging import log_context
from dra_kit.process.tracing import span
from dra_kit.slices.inventory import CurrentInventory, DeviceIdentity
from dra_kit.text import without_paths


class PreparerRunner(Struct, frozen=True):
    """Runs a driver's preparer for one claim at a time; has no state between calls.

    Attributes:
        started: set once the preparer's ``startup`` has returned.
        checks_device_files: whether device files are checked on the host.
        simulated_in: folders of simulated hardware, see :func:`check_device_nodes`; None on a real node.
        cluster_pool_devices: devices in pools without a node; None if the driver has none.
        guard: of the claims of a driver with pod hooks.
    """

    driver: Driver[Any, Any]
    configs: ConfigDecoder[Any]
    inventory: CurrentInventory
    effects: EffectEngine
    boot_id: str
    started: asyncio.Event
    metadata: MetadataFiles
    hardware: HardwareHandle
    verifier: EffectVerifier
    checks_device_files: bool = True
    simulated_in: Sequence[Path] | None = None
    cluster_pool_devices: ClusterPoolDevices | None = None
    guard: HookGuard | None = None
    _in_progress: dict[str, ClaimEffects] = field(default_factory=dict)

    @property
    def has_unprepare(self) -> bool:
        """Whether the author's preparer has its own ``unprepare``, which every release of a claim calls."""
        return type(self.driver.preparer).unprepare is not Preparer.unprepare

    def why_not_ready(self, claim: ClaimReference) -> str:
        """Return why a claim, or any claim, cannot be prepared now; empty if no reason is known."""
        if (effects := self._in_progress.get(claim.uid)) is not None and effects.coming_up:
            return effects.coming_up
        provider, preparer = type(self.driver.provider).__name__, type(self.driver.preparer).__name__
        if self.hardware.lacking:
            return f"the hardware function of Driver({self.driver.name!r}, hardware=…) has not returned yet"
        if not self.started.is_set():
            return f"{provider}.startup and {preparer}.startup have not both returned yet"
        if self.inventory.latest is None:
            problem = f" ({self.inventory.problem})" if self.inventory.problem else ""
            return f"{provider}.discover has not yielded an inventory yet{problem}"
        return ""

    def is_of_this_boot(self, record: ClaimRecord) -> bool:
        """Return whether what was done for a claim can still be in effect."""
        return record.boot_id == self.boot_id

    def is_replugged(self, record: ClaimRecord) -> bool:
        """Return whether a device was replaced after it was prepared; a missing device does not count as replaced."""
        return record.outdated or any(
            self.inventory.is_replugged(item.pool, item.device, item.identity or {}) for item in record.devices
        )

    def with_identities(self, record: ClaimRecord) -> ClaimRecord:
        """Return the record with all identities of its devices; older releases stored fewer of them."""
        devices = []
        for item in record.devices:
            now, known = self.inventory.identity(item.pool, item.device).hashes, item.identity or {}
            lacks = not now.keys() <= known.keys()
            devices.append(item.model_copy(update={"identity": {**now, **known}}) if lacks else item)
        return record.model_copy(update={"devices": tuple(devices)}) if tuple(devices) != record.devices else record

    def unfinished_record(self, claim: AllocatedClaim) -> ClaimRecord:
        """Return the record of a claim before the author's code runs: what has to be undone after a failure."""
        return ClaimRecord(
            namespace=claim.reference.namespace,
            name=claim.reference.name,
            uid=claim.reference.uid,
            allocation=claim.allocation,
            boot_id=self.boot_id,
            phase="releasing",  # so that after a crash everything is undone first
            preparing=True,
            imperative=self.has_unprepare,
            devices=tuple(map(_device_record, claim.results)),
        )

    def check_device_nodes(self, spec: Spec | None) -> None:
        """Call :func:`check_device_nodes`, unless these checks are switched off."""
        if self.checks_device_files:
            check_device_nodes(spec, self.simulated_in)

    async def effects_hold(self, record: ClaimRecord) -> bool:
        """Return whether all effects of a prepared claim are in force, as far as is known; calls the author's code."""
        return not self.driver.effects or await self.verifier.hold(record.reference)

    async def prepare(
        self, claim: AllocatedClaim, before: ClaimRecord | None, returned: list[Prepared]
    ) -> tuple[ClaimRecord, Mapping[int, str | None]]:
        """Return the record of a prepared claim, not stored yet, and the outcomes of the effects it was prepared with.

        Args:
            claim: the claim to prepare.
            before: what was recorded for the same allocation.
            returned: receives what the author's code has returned, also if it succeeds for some devices and then fails.

        Raises:
            NotYet: an effect is still coming up; the ensured effects must stay in force until the next call.
            PrepareError: with a text for the user; the ensured effects are still in force and must be released.
        """
        configs = decode_configs(claim, self.configs)
        known = [await self._advertised(result) for result in claim.results]
        advertised, identities = [device for device, _ in known], [identity for _, identity in known]
        if any(entry.config.for_devices_ for entries in configs for entry in entries):
            configs = [
                configs_for_device(entries, result, device.to_v1(), self.configs.kinds)
                for entries, result, device in zip(configs, claim.results, advertised, strict=True)
            ]
        for entries, result in zip(configs, claim.results, strict=True):
            if not result.admin_access:
                check_replacements(entries)
        await self.started.wait()
        self.effects.gone.preparing(claim.reference, ((result.pool, result.device) for result in claim.results))
        ordinary_scope = ClaimEffects(self.effects, claim.reference, admin_access=False)
        admin_scope = ClaimEffects(self.effects, claim.reference, admin_access=True)
        ordinary, admin = EffectRequests(ordinary_scope), EffectRequests(admin_scope)
        self._in_progress[claim.reference.uid] = ordinary_scope
        try:
            devices = [
                await self._device(
                    result, configs[index], advertised[index], admin if result.admin_access else ordinary
                )
                for index, result in enumerate(claim.results)
            ]
            prepared = await self._call_prepare(claim, devices, (ordinary, admin), returned)
        except (PrepareError, asyncio.CancelledError) as error:
            if not ordinary_scope.coming_up or (isinstance(error, PrepareError) and error.permanent):
                raise
            if not isinstance(error, PrepareError):
                raise NotYet(ordinary_scope.coming_up) from error
            raise NotYet(str(error), code=error.code, public=error.public) from error
        finally:
            del self._in_progress[claim.reference.uid]
            await ordinary_scope.close()
            await admin_scope.close()
        items = list(zip(claim.results, prepared, strict=True))
        mounts = self.metadata.mounts(claim.reference, claim.pod_claim_name, items)
        guard = None if self.guard is None else self.guard.mount(claim.reference.uid)
        spec, names = build_claim_spec(self.driver.name, claim.reference.uid, items, mounts, guard)
        self.check_device_nodes(spec)
        former = _former(claim, before)
        statuses = device_statuses(self.driver.name, items, former)
        records = tuple(
            _device_record(
                result,
                cdi_devices=names[index],
                hardware_ids=tuple(prepared[index].hardware_ids),
                state=cast("JsonValue", prepared[index].state),  # a copy made of lists and dicts
                status=statuses[index],
                metadata=metadata_json(prepared[index].metadata),
                advertised=identities[index].fingerprint,
                identity=dict(identities[index].hashes),
            )
            for index, result in enumerate(claim.results)
        )
        if before is not None and self.is_of_this_boot(before):
            records = tuple(map(_with_updates, records, former))
        if self.driver.effects:
            # effects that an earlier preparation needed (interrupted, or of another device), and this one does not
            await self.effects.reverter.release(claim.reference, keep=ordinary_scope.outcomes)
        record = ClaimRecord(
            namespace=claim.reference.namespace,
            name=claim.reference.name,
            uid=claim.reference.uid,
            allocation=claim.allocation,
            boot_id=self.boot_id,
            devices=records,
            spec=spec,
            pods=claim.pod_names,
            consumers=claim.consumers,
            pod_claim_name=claim.pod_claim_name,
            metadata_generation=before.metadata_generation + 1 if before is not None else 1,
            imperative=self.has_unprepare,
            sees=tuple(sorted(admin_scope.outcomes)),  # effects of other claims, which admin access only reads
        )
        return record, {**admin_scope.outcomes, **ordinary_scope.outcomes}

    async def _advertised(self, result: v1.DeviceRequestAllocationResult) -> tuple[Device, DeviceIdentity]:
        """Return a device as this node or the controller advertises it, and its identity."""
        if self.cluster_pool_devices is not None and not await self.inventory.publishes(result.pool):
            return await self.cluster_pool_devices.device(result.pool, result.device)
        device = await self.inventory.device(result.pool, result.device)
        return device, self.inventory.identity(result.pool, result.device)

    async def _device(
        self,
        result: v1.DeviceRequestAllocationResult,
        configs: tuple[ConfigEntry[Any], ...],
        advertised: Device,
        effects: EffectRequests,
    ) -> AllocatedDevice[Any, Any]:
        request, _, subrequest = result.request.partition("/")
        return AllocatedDevice(
            name=result.device,
            pool=result.pool,
            request=request,
            subrequest=subrequest or None,
            config=configs[-1].config
            if configs
            else await self._default_config(advertised, admin_access=bool(result.admin_access)),
            configs=configs,
            advertised=advertised,
            consumed_capacity=result.consumed_capacity,
            share_id=result.share_id,
            admin_access=bool(result.admin_access),
            binding_conditions=result.binding_conditions,
            effects=effects,
        )

    async def _default_config(self, advertised: Device, *, admin_access: bool) -> OpaqueConfig:
        """Return the default config for a device whose claim has none."""
        try:
            config: OpaqueConfig = await resolve_default_config(
                self.driver.preparer, advertised, admin_access=admin_access
            )
        except Exception as error:
            method = default_config_method(self.driver.preparer, admin_access=admin_access).__name__
            raise self._error(method, error) from error
        return config

    async def _call_prepare(
        self,
        claim: AllocatedClaim,
        devices: Sequence[AllocatedDevice[Any, Any]],
        effects: tuple[EffectRequests, EffectRequests],
        returned: list[Prepared],
    ) -> list[Prepared]:
        """Return what the author's code returns; ``effects`` are for ordinary devices, and for admin access."""
        preparer, (ordinary, admin) = self.driver.preparer, effects
        try:
            # a device with admin access changes nothing, whichever way the author asks for an effect
            whole = admin if all(device.admin_access for device in devices) else ordinary
            prepared = await run_prepare(preparer, claim.for_author(whole), devices, returned, _about)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise self._error("prepare", error) from error  # a task of the author's code was cancelled
        except Exception as error:
            if may_be_unawaited_effect(error):
                self._check_all_awaited(ordinary, admin, error)
            failure = self._error("prepare", error)
            raise self._with_default_config_note(failure, claim, devices) from error
        self._check_all_awaited(ordinary, admin)
        returned[:] = prepared
        return returned

    async def unprepare(self, record: ClaimRecord) -> None:
        """Call the author's ``unprepare``.

        Raises:
            PrepareError: it failed; the claim is not released.
        """
        preparer = self.driver.preparer
        devices = [item.for_author() for item in record.devices]
        try:
            await call(preparer.unprepare, record.reference, devices)
        except PrepareError:
            raise
        except Exception as error:
            remark = "the release is retried when the kubelet asks again"
            raise self._author_error(TransientError, "unprepare", error, remark) from error

    def _author_error(self, kind: type[PrepareError], method: str, error: BaseException, remark: str) -> PrepareError:
        preparer = type(self.driver.preparer)
        full, public = (
            f"{preparer.__name__}.{method} {describe_raised_error(error, preparer.__module__, public=public)}; {remark}"
            for public in (False, True)
        )
        return kind(full, code="author-error", public=public)

    def _check_all_awaited(
        self, ordinary: EffectRequests, admin: EffectRequests, cause: Exception | None = None
    ) -> None:
        forgotten = ordinary.never_awaited() + admin.never_awaited()
        if forgotten:
            raise ConfigurationError(
                f"{type(self.driver.preparer).__name__}: ensure({forgotten[0]}) was never awaited; write "
                "'await device.ensure(…)', in a plain def 'device.ensure(…).result()'",
                code="effect-not-awaited",
            ) from cause

    def _error(self, method: str, error: BaseException) -> DraKitError:
        """Return the author's exception as an error of the claim; errors for the user are returned unchanged."""
        if isinstance(error, PrepareError | ConfigurationError):
            return error
        if isinstance(error, ExceptionGroup) and (still := _not_yet(error)) is not None:
            return still
        if isinstance(error, DraKitError):
            where = f"{type(self.driver.preparer).__name__}.{method}"
            return PrepareError(f"{where}: {error}", code=error.code, public=f"{where}: {without_paths(error.public)}")
        return self._author_error(PrepareError, method, error, "the driver's log has the traceback")

    def _with_default_config_note(
        self, error: DraKitError, claim: AllocatedClaim, devices: Sequence[AllocatedDevice[Any, Any]]
    ) -> DraKitError:
        """Return the error, with a note if devices got the default config because their claim has none."""
        preparer = type(self.driver.preparer)
        given = [device for device in devices if not device.configs]
        selected = len(self.driver.configs.kinds) == 1 or preparer.default_config is not Preparer.default_config
        if selected or not given or not self.driver.configs.kinds:
            return error
        remark = (
            f" (claim {claim.reference} has no config for {', '.join(item.name for item in given)}, so the default "
            f"{type(given[0].config).__name__} was used; override {preparer.__name__}.default_config to select another)"
        )
        kind = PermanentError if isinstance(error, PermanentError) else TransientError
        return kind(f"{error}{remark}", code=error.code, public=f"{error.public}{remark}")


def _device_record(result: v1.DeviceRequestAllocationResult, **prepared: Any) -> DeviceRecord:
    return DeviceRecord(
        request=base_request(result.request),
        pool=result.pool,
        device=result.device,
        share_id=result.share_id,
        admin_access=bool(result.admin_access),
        **prepared,
    )


def _former(claim: AllocatedClaim, before: ClaimRecord | None) -> list[DeviceRecord | None]:
    """Return what was recorded for each result of a claim that is prepared again."""
    known = {(item.pool, item.device, item.share_id): item for item in before.devices} if before is not None else {}
    return [known.get((result.pool, result.device, result.share_id)) for result in claim.results]


def _with_updates(device: DeviceRecord, former: DeviceRecord | None) -> DeviceRecord:
    """Return the device with what ``context.update`` has reported: preparing it again yields nothing newer."""
    if former is None or not former.told_later:
        return device
    reported: dict[str, Any] = {name: getattr(former, name) for name in former.told_later}
    return device.model_copy(update=reported | {"told_later": former.told_later})


@contextmanager
def _about(devices: Sequence[str]) -> Iterator[None]:
    """Add the device names of a call to the log lines of the author's code, and to traces."""
    names = ",".join(devices)
    with log_context(device=names), span("driver code", device=names):
        yield


def _not_yet(error: BaseException) -> NotYet | None:
    """Return the effect that is still coming up, of those ensured in a TaskGroup; None after any other error."""
    if isinstance(error, ExceptionGroup):
        found = [_not_yet(item) for item in error.exceptions]
        return found[0] if None not in found else None
    return error if isinstance(error, NotYet) else None


def decode_configs(claim: AllocatedClaim, decoder: ConfigDecoder[Any]) -> list[tuple[ConfigEntry[Any], ...]]:
    """Return for each result of a claim the entries that apply to it, weakest first; results may share an entry.

    Raises:
        InvalidConfig: names request, source and every invalid field.
    """
    if not any(claim.configs):
        return [()] * len(claim.configs)
    allocation = claim.status.allocation
    assert allocation is not None  # noqa: S101 - the reader has checked it
    index_of = {id(entry): index for index, entry in enumerate(allocation.devices.config)}
    known: dict[int, ConfigEntry[Any]] = {}
    for result, entries in zip(claim.results, claim.configs, strict=True):
        for entry in entries:
            index = index_of[id(entry)]
            if index not in known:
                known[index] = _decoded(entry, index, result.request, _named(entry, claim), decoder)
    return [tuple(known[index_of[id(entry)]] for entry in entries) for entries in claim.configs]


def configs_for_device(
    entries: tuple[ConfigEntry[Any], ...],
    result: v1.DeviceRequestAllocationResult,
    device: v1.Device,
    kinds: Sequence[type[OpaqueConfig]],
) -> tuple[ConfigEntry[Any], ...]:
    """Return the entries of a result whose configs are for its device, weakest first.

    Raises:
        InvalidConfig: an entry names the request but is not for the device, and no stronger entry is. With admin access
            such an entry is ignored, because nothing is changed.
    """
    found: list[ConfigEntry[Any]] = []
    for entry in reversed(entries):
        if matches_device(entry.config.for_devices_, device, result.driver):
            found.append(entry)
        elif entry.requests and not found and not result.admin_access:
            fitting = [kind.kind_ for kind in kinds if matches_device(kind.for_devices_, device, result.driver)]
            taken = " or ".join(fitting) or "no config"
            raise InvalidConfig(f"{entry} does not fit {result.device}, which takes {taken}; correct one of the two")
    return tuple(reversed(found))


def check_replacements(entries: tuple[ConfigEntry[Any], ...]) -> None:
    """Reject entries of the claim that must not replace the config of its DeviceClass; ``entries`` are of one device.

    Raises:
        InvalidConfig: names both entries, with the reason that the class's config gives.
    """
    by_class = {type(entry.config): entry for entry in entries if entry.source == "class"}
    for entry in entries:
        bound = by_class.get(type(entry.config))
        if entry.source == "claim" and bound is not None and (reason := bound.config.refusal_of(entry.config)):
            raise InvalidConfig(f"{entry} cannot replace {bound}: {reason}")


def _named(entry: v1.DeviceAllocationConfiguration, claim: AllocatedClaim) -> tuple[str, ...]:
    """Return the requests of an entry as its author named them; the 1.37 scheduler omits a list of all requests."""
    if entry.requests or entry.source != "FromClaim" or entry.opaque is None:
        return entry.requests
    spec = (claim.raw.get("spec") or {}).get("devices") or {}
    for config in spec.get("config") or ():
        opaque = config.get("opaque") or {}
        if opaque.get("driver") == entry.opaque.driver and opaque.get("parameters") == entry.opaque.parameters:
            return tuple(config.get("requests") or ())
    return ()


def _decoded(
    entry: v1.DeviceAllocationConfiguration,
    index: int,
    request: str,
    named: tuple[str, ...],
    decoder: ConfigDecoder[Any],
) -> ConfigEntry[Any]:
    from_claim = entry.source == "FromClaim"
    try:
        config = decoder.decode(entry.opaque.parameters if entry.opaque is not None else None)
    except InvalidConfig as error:
        source = "the claim" if from_claim else "its DeviceClass"
        raise InvalidConfig(
            f"request {request!r}: config of {source}: {error}; correct it and create the claim again",
            problems=error.problems,
            omitted=error.omitted,
        ) from error
    return ConfigEntry(config, "claim" if from_claim else "class", index, named)


_TYPES: Final = {stat.S_IFCHR: "c", stat.S_IFBLK: "b", stat.S_IFIFO: "p"}


def check_device_nodes(spec: Spec | None, simulated_in: Sequence[Path] | None = None) -> None:
    """Check that the device files that the container runtime will look for exist.

    The runtime takes type and numbers from the host's file and does not start the container if that is missing. A
    device node whose type and numbers are in the spec needs no file (CDI's Go library 1.1.1, ``fillMissingInfo``).

    Args:
        spec: the claim's CDI spec.
        simulated_in: in a sandbox, the folders of simulated hardware. Only root can make device nodes, so any file
            will do, on the machine or at the same path below one of these folders.

    Raises:
        NotYet: a path is missing or is not such a device (code ``device-node-missing``). It may appear later, so what
            was done for the claim stays in effect until the kubelet asks again.
    """
    for owner, node in _from_host(spec):
        path = node.host_path or node.path
        if simulated_in is not None:
            places = [Path(path), *(root / path.lstrip("/") for root in simulated_in)]
            if not any(os.path.lexists(place) for place in places):
                raise NotYet(
                    f"device node {path}{owner} is not on this machine, so no container could start; create it in the "
                    "folder of the simulated hardware that a setting of the driver names, or give the DeviceNode type, "
                    "major and minor",
                    code="device-node-missing",
                )
            continue
        try:
            mode = os.lstat(path).st_mode  # like the library, do not follow links
        except OSError as error:
            raise _missing(node, owner, f"is not on the node: {error.strerror}") from None
        found = _TYPES.get(stat.S_IFMT(mode), "")
        if stat.S_ISLNK(mode):
            why = "is a link, which container runtimes do not follow; use the path of its target"
            raise _missing(node, owner, why)
        if not found or found != (node.type or found):
            wanted = {"b": "block device", "c": "character device", "p": "FIFO"}.get(node.type, "device file")
            raise _missing(node, owner, f"is not a {wanted}")


def _from_host(spec: Spec | None) -> Iterator[tuple[str, DeviceNode]]:
    """Yield the device nodes that take type or numbers from the host's file, and whose they are."""
    if spec is None:
        return
    parts = [("", spec.container_edits)]
    # CDI names of devices are uid:request:pool:device
    parts += [(f" of device {device.name.partition(':')[2]}", device.container_edits) for device in spec.devices]
    for owner, edits in parts:
        for node in edits.device_nodes:
            if not node.type or (not node.major and node.type != "p"):
                yield owner, node


def _missing(node: DeviceNode, owner: str, why: str) -> NotYet:
    path = node.host_path or node.path
    wanted = f", for {node.path} in the container," if path != node.path else ""
    return NotYet(
        f"device node {path}{owner}{wanted} {why}; load the kernel driver that creates it, or, if this process does "
        "not see the node's /dev, start it with --no-check-device-nodes",
        code="device-node-missing",
    )
