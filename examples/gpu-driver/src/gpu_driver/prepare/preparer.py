"""``GpuPreparer``: turns allocated devices into what a container gets."""

import re
from collections.abc import Sequence
from typing import TypeVar

import dra_kit as dra

from gpu_driver.config.kinds import GpuConfig, MigDeviceConfig, VfioDeviceConfig
from gpu_driver.devices.gpu import Gpu
from gpu_driver.effects.compute_mode import SetComputeMode
from gpu_driver.effects.mig.mode import SetMigMode
from gpu_driver.effects.time_slice import SetTimeSlice
from gpu_driver.hardware import Hardware
from gpu_driver.nvml.backend import ComputeMode
from gpu_driver.nvml.errors import REMEDIES, NvmlError
from gpu_driver.prepare import edits, partitions, passthrough, sharing
from gpu_driver.prepare.common import CommonEdits
from gpu_driver.prepare.sharing import SharingEntry
from gpu_driver.settings import Settings

AnyConfig = GpuConfig | MigDeviceConfig | VfioDeviceConfig
Allocated = dra.AllocatedDevice[AnyConfig, Gpu]
ConfigT = TypeVar("ConfigT", GpuConfig, MigDeviceConfig, VfioDeviceConfig)


class GpuPreparer(dra.Preparer[AnyConfig, Gpu, Hardware, Settings]):
    """Prepares devices for containers. A claim with admin access changes nothing."""

    _common: CommonEdits

    def startup(self, context: dra.Context[Settings]) -> None:
        self._common = CommonEdits()  # of this node: a driver is copied for each
        from gpu_driver.metrics import PreparedDevices  # only nodes have metrics; webhook and lint load less

        context.metrics.register(PreparedDevices(context))

    def prepare_claim(self, claim: dra.Claim, devices: Sequence[Allocated]) -> Sequence[dra.Prepared]:
        try:
            return self._prepare_all(claim, devices)
        except NvmlError as error:
            whose = ", ".join(device.name for device in devices if device.advertised.uuid == error.subject)
            remedy = REMEDIES.get(error.code, "see nvidia-smi -q on the node; it is tried again")
            raise dra.TransientError(f"{f'{whose}: ' if whose else ''}{error}: {remedy}") from None

    def _prepare_all(self, claim: dra.Claim, devices: Sequence[Allocated]) -> Sequence[dra.Prepared]:
        # a config that is wrong is refused before anything is changed
        shared = [_sharing(device) for device in devices]
        machines = {device.name: _passthrough(device) for device in devices if device.advertised.kind == "vfio"}
        sharing.check(list(zip(devices, shared, strict=True)))
        passthrough.check(machines.values())
        prepared: list[dra.Prepared] = []
        members: list[sharing.Member] = []
        for device, entry in zip(devices, shared, strict=True):
            if device.name in machines:
                prepared.append(passthrough.handle(self.hardware, device, machines[device.name]))
                continue
            uuid, made = self._prepare(claim, device, entry)
            if entry is not None and sharing.is_mps(entry):
                members.append(sharing.Member(len(prepared), device, uuid, entry))
            prepared.append(made)
        for place, more in sharing.clients(members, claim, self.context, self.hardware):
            known = prepared[place]
            prepared[place] = known.model_copy(
                update={"env": {**known.env, **more.env}, "mounts": [*known.mounts, *more.mounts]}
            )
        return prepared

    def _prepare(self, claim: dra.Claim, device: Allocated, entry: SharingEntry | None) -> tuple[str, dra.Prepared]:
        """Return the UUID by which CUDA finds the device, and what a container gets."""
        uuid, nodes = self._handle(claim, device, entry)
        return uuid, dra.Prepared(
            env={f"{_env_name(device)}_UUID": uuid},
            device_nodes=nodes,
            claim_edits=self._common.of(self.hardware, self.context.settings),
            metadata=dra.DeviceMetadata(attributes={"uuid": uuid}),
            hardware_ids=[uuid],  # as nvidia-smi and dcgm-exporter name it
        )

    def _handle(
        self, claim: dra.Claim, device: Allocated, entry: SharingEntry | None
    ) -> tuple[str, list[dra.DeviceNode]]:
        """Return the UUID and the device files."""
        gpu = device.advertised
        if gpu.kind == "mig":
            return partitions.handle(self.hardware, claim, device)
        if gpu.kind == "monitor" and not device.admin_access:
            raise dra.PermanentError(
                f"{device.name} is for claims that monitor GPUs: write adminAccess: true, or ask for a GPU"
            )
        if gpu.kind == "gpu" and not device.admin_access:
            self._whole(device, entry)
            return gpu.uuid, edits.whole(self.hardware, gpu)
        return gpu.uuid, edits.gpu(self.hardware, gpu.minor)

    def _whole(self, device: Allocated, entry: SharingEntry | None) -> None:
        uuid = device.advertised.uuid
        if device.advertised.live_mig:
            device.ensure(SetMigMode(uuid=uuid, enabled=False)).result()
        if entry is None or not isinstance(entry.config, GpuConfig) or entry.config.sharing is None:
            return
        if entry.config.sharing.strategy == "TimeSlicing":
            device.ensure(SetComputeMode(uuid=uuid, mode=ComputeMode.DEFAULT)).result()
            device.ensure(SetTimeSlice(uuid=uuid, interval=entry.config.sharing.interval)).result()


def _sharing(device: Allocated) -> SharingEntry | None:
    """Return the entry of the device's sharing; None with admin access, which changes nothing."""
    if device.admin_access:
        return None
    return _strongest(device, MigDeviceConfig) if device.advertised.kind == "mig" else _strongest(device, GpuConfig)


def _passthrough(device: Allocated) -> passthrough.VfioEntry | None:
    """Return the entry of a device in passthrough."""
    if device.admin_access:
        raise dra.PermanentError(f"{device.name}: a GPU in passthrough cannot be monitored; leave adminAccess out")
    return _strongest(device, VfioDeviceConfig)


def _strongest(device: Allocated, kind: type[ConfigT]) -> dra.ConfigEntry[ConfigT] | None:
    """Return the entry that configures the device; None where it is as it is. Those for other devices are not there."""
    for entry in reversed(device.configs):
        if isinstance(entry.config, kind):
            return dra.ConfigEntry(entry.config, entry.source, entry.index, entry.requests)
    return None


def _env_name(device: Allocated) -> str:
    """Return the device's name in a variable; with the request's where a claim may have several shares of it."""
    partition = device.advertised.partition
    if partition is None or not partition.shared:
        return device.env_name
    return f"{device.env_name}_{re.sub(r'[^A-Z0-9]', '_', device.request.upper())}"
