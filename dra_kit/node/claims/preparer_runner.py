"""One claim through the author's preparer: from an allocated claim to the record of what was prepared."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, cast

from msgspec import Struct, field
from pydantic import JsonValue

from dra_kit.author.config.decoding import ConfigDecoder
from dra_kit.author.config.opaque import ConfigEntry
from dra_kit.author.devices.device import Device
from dra_kit.author.driver import Driver
from dra_kit.author.preparing.claim import AllocatedDevice, Effects
from dra_kit.author.preparing.prepared import Prepared
from dra_kit.author.preparing.preparer import Preparer
from dra_kit.cdi.spec import Spec
from dra_kit.errors import (
    NotYet,
    PrepareError,
)
from dra_kit.kubernetes.resource import v1
from dra_kit.kubernetes.resource.config import base_request
from dra_kit.kubernetes.resource.objects import ClaimReference
from dra_kit.node.claims.author.author_calls import AuthorCalls
from dra_kit.node.claims.author.configs import check_replacements, decoded_configs, for_device
from dra_kit.node.claims.reader import AllocatedClaim
from dra_kit.node.claims.reports.status import device_statuses
from dra_kit.node.effects.engine import EffectEngine
from dra_kit.node.effects.holding import Holding
from dra_kit.node.effects.scope import ClaimEffects
from dra_kit.node.files.device_nodes import check_device_nodes
from dra_kit.node.files.edits import claim_spec
from dra_kit.node.files.metadata import MetadataFiles, metadata_json
from dra_kit.node.hardware import Hardware
from dra_kit.node.slices.of_no_node import DevicesOfNoNode
from dra_kit.node.state.records import ClaimRecord, DeviceRecord
from dra_kit.publishing.identity import Identity
from dra_kit.publishing.inventory import CurrentInventory


class Preparation(Struct, frozen=True):
    """Runs a driver's preparer for one claim at a time; keeps nothing between calls.

    Args:
        driver: whose preparer is run.
        configs: decodes the configs of claims.
        inventory: where allocated devices are looked up.
        effects: where the preparer's effects are ensured.
        boot_id: written into the record.
        started: set once the preparer's ``startup`` has returned.
        metadata: knows where the metadata of a claim will be.
        hardware: is made before the preparer's ``startup``.
        holding: asks whether effects still hold.
        looks_for_nodes: whether device files are looked for on the host.
        of_no_node: devices that are in no pool of this node; None where the driver has none.
    """

    driver: Driver[Any, Any]
    configs: ConfigDecoder[Any]
    inventory: CurrentInventory
    effects: EffectEngine
    boot_id: str
    started: asyncio.Event
    metadata: MetadataFiles
    hardware: Hardware
    holding: Holding
    looks_for_nodes: bool = True
    of_no_node: DevicesOfNoNode | None = None
    _under_way: dict[str, ClaimEffects] = field(default_factory=dict)

    @property
    def author(self) -> AuthorCalls:
        """The author's preparer."""
        return AuthorCalls(self.driver)

    @property
    def is_imperative(self) -> bool:
        """Whether the author has something of his own to undo when a claim is released."""
        return type(self.driver.preparer).unprepare is not Preparer.unprepare

    def lacking(self, claim: ClaimReference) -> str:
        """Return why a claim, or any at all, cannot be prepared now; empty when nothing is known of that."""
        if (effects := self._under_way.get(claim.uid)) is not None and effects.coming_up:
            return effects.coming_up
        provider, preparer = type(self.driver.provider).__name__, type(self.driver.preparer).__name__
        if self.hardware.lacking:
            return f"what Driver({self.driver.name!r}, hardware=…) calls has not returned yet"
        if not self.started.is_set():
            return f"{provider}.startup and {preparer}.startup have not both returned yet"
        if self.inventory.latest is None:
            problem = f" ({self.inventory.problem})" if self.inventory.problem else ""
            return f"{provider}.discover has not yielded an inventory yet{problem}"
        return ""

    def is_current(self, record: ClaimRecord) -> bool:
        """Return whether a record may be answered from as it is."""
        return self.is_of_this_boot(record) and not self.is_replugged(record)

    def is_of_this_boot(self, record: ClaimRecord) -> bool:
        """Return whether what was done for a claim can still be in force."""
        return record.boot_id == self.boot_id

    def is_replugged(self, record: ClaimRecord) -> bool:
        """Return whether a device is another one than when it was prepared; one that is gone says nothing."""
        return record.outdated or any(
            self.inventory.is_replugged(item.pool, item.device, item.identity or {}) for item in record.devices
        )

    def adopted(self, record: ClaimRecord) -> ClaimRecord:
        """Return the record with all identities of its devices, of which an older release wrote fewer."""
        devices = []
        for item in record.devices:
            now, known = self.inventory.identity(item.pool, item.device).hashes, item.identity or {}
            lacks = not now.keys() <= known.keys()
            devices.append(item.model_copy(update={"identity": {**now, **known}}) if lacks else item)
        return record.model_copy(update={"devices": tuple(devices)}) if tuple(devices) != record.devices else record

    def begun(self, claim: AllocatedClaim) -> ClaimRecord:
        """Return the record of a claim before the author's code runs: what is to be undone after a failure."""
        return ClaimRecord(
            namespace=claim.reference.namespace,
            name=claim.reference.name,
            uid=claim.reference.uid,
            allocation=claim.allocation,
            boot_id=self.boot_id,
            phase="releasing",
            preparing=True,
            imperative=self.is_imperative,
            devices=tuple(
                DeviceRecord(
                    request=base_request(result.request),
                    pool=result.pool,
                    device=result.device,
                    share_id=result.share_id,
                    admin_access=bool(result.admin_access),
                )
                for result in claim.results
            ),
        )

    def check_device_nodes(self, spec: Spec | None) -> None:
        """Look for the device files that a claim's spec names, where the driver is to.

        Raises:
            NotYet: one is not there (code ``device-node-missing``).
        """
        if self.looks_for_nodes:
            check_device_nodes(spec)

    async def effects_hold(self, record: ClaimRecord) -> bool:
        """Return whether all effects of a prepared claim are in force, as far as is known; asks the author's code."""
        return not self.driver.effects or await self.holding.hold(record.reference)

    async def prepare(
        self, claim: AllocatedClaim, before: ClaimRecord | None, returned: list[Prepared]
    ) -> tuple[ClaimRecord, Mapping[int, str | None]]:
        """Return the record of a prepared claim, not stored yet, and the outcomes of effects that it was prepared with.

        Args:
            claim: to prepare.
            before: what was recorded of the same allocation.
            returned: gets what the author's code has returned for the first devices, also when it fails for the next.

        Raises:
            NotYet: an effect is still coming up; what was ensured is to stay as it is until the next call.
            PrepareError: with a text for the user; whatever was ensured is still in force and must be released.
        """
        configs = decoded_configs(claim, self.configs)
        known = [await self._advertised(result) for result in claim.results]
        advertised, identities = [device for device, _ in known], [identity for _, identity in known]
        if any(entry.config.for_devices_ for entries in configs for entry in entries):
            configs = [
                for_device(entries, result, device.to_v1(), self.configs.kinds)
                for entries, result, device in zip(configs, claim.results, advertised, strict=True)
            ]
        for entries, result in zip(configs, claim.results, strict=True):
            if not result.admin_access:
                check_replacements(entries)
        await self.started.wait()
        ordinary_scope = ClaimEffects(self.effects, claim.reference, admin_access=False)
        admin_scope = ClaimEffects(self.effects, claim.reference, admin_access=True)
        ordinary, admin = Effects(ordinary_scope), Effects(admin_scope)
        self._under_way[claim.reference.uid] = ordinary_scope
        try:
            devices = [
                await self._device(
                    result, configs[index], advertised[index], admin if result.admin_access else ordinary
                )
                for index, result in enumerate(claim.results)
            ]
            prepared = await self.author.prepare(claim, devices, (ordinary, admin), returned)
        except (PrepareError, asyncio.CancelledError) as error:
            if not ordinary_scope.coming_up or (isinstance(error, PrepareError) and error.permanent):
                raise
            if not isinstance(error, PrepareError):
                raise NotYet(ordinary_scope.coming_up) from error
            raise NotYet(str(error), code=error.code, public=error.public) from error
        finally:
            del self._under_way[claim.reference.uid]
            await ordinary_scope.close()
            await admin_scope.close()
        items = list(zip(claim.results, prepared, strict=True))
        mounts = self.metadata.mounts(claim.reference, claim.pod_claim_name, items)
        spec, names = claim_spec(self.driver.name, claim.reference.uid, items, mounts)
        self.check_device_nodes(spec)
        former = _former(claim, before)
        statuses = device_statuses(self.driver.name, items, former)
        records = tuple(
            DeviceRecord(
                request=base_request(result.request),
                pool=result.pool,
                device=result.device,
                share_id=result.share_id,
                admin_access=bool(result.admin_access),
                cdi_devices=names[index],
                hardware_ids=tuple(prepared[index].hardware_ids),
                state=cast("JsonValue", prepared[index].state),  # a copy in lists and dicts
                status=statuses[index],
                metadata=metadata_json(prepared[index].metadata),
                advertised=identities[index].fingerprint,
                identity=dict(identities[index].hashes),
            )
            for index, result in enumerate(claim.results)
        )
        if before is not None and self.is_of_this_boot(before):
            records = tuple(map(_with_later_facts, records, former))
        if self.driver.effects:
            # what an earlier preparation needed, cut off or of another device, and this one does not
            await self.effects.undoing.release(claim.reference, keep=ordinary_scope.outcomes)
        record = ClaimRecord(
            namespace=claim.reference.namespace,
            name=claim.reference.name,
            uid=claim.reference.uid,
            allocation=claim.allocation,
            boot_id=self.boot_id,
            devices=records,
            spec=spec,
            pods=claim.pod_names,
            pod_claim_name=claim.pod_claim_name,
            metadata_generation=before.metadata_generation + 1 if before is not None else 1,
            imperative=self.is_imperative,
            sees=tuple(sorted(admin_scope.outcomes)),
        )
        return record, {**admin_scope.outcomes, **ordinary_scope.outcomes}

    async def _advertised(self, result: v1.DeviceRequestAllocationResult) -> tuple[Device, Identity]:
        """Return a device as it is advertised, by this node or by the controller, and what makes it the same one."""
        if self.of_no_node is not None and not await self.inventory.publishes(result.pool):
            return await self.of_no_node.device(result.pool, result.device)
        device = await self.inventory.device(result.pool, result.device)
        return device, self.inventory.identity(result.pool, result.device)

    async def _device(
        self,
        result: v1.DeviceRequestAllocationResult,
        configs: tuple[ConfigEntry[Any], ...],
        advertised: Device,
        effects: Effects,
    ) -> AllocatedDevice[Any, Any]:
        request, _, subrequest = result.request.partition("/")
        if configs:
            config = configs[-1].config
        else:
            config = await self.author.default_config(advertised, admin_access=bool(result.admin_access))
        return AllocatedDevice(
            name=result.device,
            pool=result.pool,
            request=request,
            subrequest=subrequest or None,
            config=config,
            configs=configs,
            advertised=advertised,
            consumed_capacity=result.consumed_capacity,
            share_id=result.share_id,
            admin_access=bool(result.admin_access),
            binding_conditions=result.binding_conditions,
            effects=effects,
        )


def _former(claim: AllocatedClaim, before: ClaimRecord | None) -> list[DeviceRecord | None]:
    """Return what was recorded of each result of a claim that is prepared again."""
    known = {(item.pool, item.device, item.share_id): item for item in before.devices} if before is not None else {}
    return [known.get((result.pool, result.device, result.share_id)) for result in claim.results]


def _with_later_facts(device: DeviceRecord, former: DeviceRecord | None) -> DeviceRecord:
    """Return what was reported of a device later than ``prepare`` stays: to prepare it again tells nothing newer."""
    if former is None or not former.told_later:
        return device
    reported: dict[str, Any] = {name: getattr(former, name) for name in former.told_later}
    return device.model_copy(update=reported | {"told_later": former.told_later})
