"""MPS for the devices of a claim: those that one entry of its config is for have one daemon."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import dra_kit as dra

from gpu_driver.config.kinds import GpuConfig, MigDeviceConfig
from gpu_driver.config.pinned_memory import limits
from gpu_driver.effects.compute_mode import SetComputeMode
from gpu_driver.effects.mps.daemon import MpsDaemon
from gpu_driver.effects.mps.limits import Limits
from gpu_driver.effects.mps.paths import MakeMpsFolder, MpsFolder, identity, root_of
from gpu_driver.effects.mps.pod import MpsPod
from gpu_driver.hardware import Hardware
from gpu_driver.host.folders import is_propagated
from gpu_driver.nvml.backend import ComputeMode
from gpu_driver.prepare.partitions import Allocated
from gpu_driver.settings import Settings

_FIRST_WITH_MULTI_USER = (7, 0)
"""Compute capability from which clients of several users may share a server (Volta MPS)."""

SharingEntry = dra.ConfigEntry[GpuConfig] | dra.ConfigEntry[MigDeviceConfig]


@dataclass(frozen=True)
class Member:
    """A device that is shared by MPS.

    Attributes:
        place: among the devices of the claim.
        device: the allocated device.
        uuid: its UUID in CUDA.
        entry: of the claim's config, whose strategy is MPS.
    """

    place: int
    device: Allocated
    uuid: str
    entry: SharingEntry

    @property
    def group(self) -> tuple[int, str]:
        """Devices of one entry have one daemon; a daemon serves several GPUs, but one partition."""
        return self.entry.index, self.uuid if self.device.advertised.kind == "mig" else ""


def is_mps(entry: SharingEntry | None) -> bool:
    """Whether an entry wants MPS."""
    return entry is not None and entry.config.sharing is not None and entry.config.sharing.strategy == "MPS"


def check(devices: Sequence[tuple[Allocated, SharingEntry | None]]) -> None:
    """Refuse what no daemon can do, before anything is changed for it.

    Raises:
        PermanentError: naming the device.
    """
    partitions: dict[str, str] = {}
    for device, entry in devices:
        if entry is None or not is_mps(entry) or entry.config.sharing is None:
            continue
        capability = device.advertised.compute_capability
        if entry.config.sharing.mps.multi_user and capability < _FIRST_WITH_MULTI_USER:
            raise dra.PermanentError(
                f"{device.name} has compute capability {'.'.join(map(str, capability))}, and multiUser takes 7.0; "
                "leave multiUser out, or ask for a newer GPU"
            )
        if device.advertised.kind == "mig":
            other = partitions.setdefault(device.request, device.name)
            if other != device.name:
                raise dra.PermanentError(
                    f"{other} and {device.name} are shared by MPS in one request, and a process uses one partition by "
                    "MPS; write a request for each"
                )


def clients(
    members: Sequence[Member], claim: dra.Claim, context: dra.Context[Settings], hardware: Hardware
) -> Iterator[tuple[int, dra.ContainerEdits]]:
    """Start the daemons; what the containers of each device need to find theirs.

    Raises:
        PrepareError: one does not come up (yet), or cannot do what the config wants.
    """
    root = root_of(context.settings, hardware)
    for (entry, _), found in groupby(sorted(members, key=lambda member: member.group), key=lambda member: member.group):
        group = list(found)
        uuids = tuple(sorted({member.uuid for member in group}))
        folder = MpsFolder(path=root / identity(claim.uid, entry, uuids))
        _start(group, uuids, folder, claim, context, hardware)
        edits = _edits(folder)
        yield from ((member.place, edits) for member in group)


def _start(
    group: Sequence[Member],
    uuids: tuple[str, ...],
    folder: MpsFolder,
    claim: dra.Claim,
    context: dra.Context[Settings],
    hardware: Hardware,
) -> None:
    first, settings = group[0], context.settings
    sharing = first.entry.config.sharing
    assert sharing is not None  # only such entries make members
    wanted = sharing.mps
    memory = limits(uuids, wanted.default_pinned_device_memory_limit, wanted.default_per_device_pinned_memory_limit)
    folder.check()
    for member in group:
        if member.device.advertised.kind == "gpu":
            # clients of MPS need no other mode, and EXCLUSIVE_PROCESS would lock out other claims on a shared GPU
            member.device.ensure(SetComputeMode(uuid=member.uuid, mode=ComputeMode.DEFAULT)).result()
    first.device.ensure(_folder_effect(folder, context)).result()
    by_index = Limits(
        percentage=wanted.default_active_thread_percentage,
        memory={uuids.index(uuid): limit for uuid, limit in sorted(memory.items())},
    )
    if settings.mps_daemon == "pod":
        pod = MpsPod(
            claim_uid=f"{claim.uid}-{folder.path.name}",
            namespace=settings.mps_namespace,
            node=context.node.name,
            image=settings.mps_image,
            pull_secrets=tuple(settings.mps_pull_secrets),
            driver_root=settings.driver_root,
            devices=uuids,
            folder=folder,
            limits=by_index,
            multi_user=wanted.multi_user,
            double=hardware.fake,
            environment=dict(hardware.environment) if hardware.fake else {},
        )
        first.device.ensure(_of_its_own_release(pod, context)).result()
    else:
        first.device.ensure(
            MpsDaemon(devices=uuids, folder=folder, limits=by_index, multi_user=wanted.multi_user)
        ).result()


def _of_its_own_release(pod: MpsPod, context: dra.Context[Settings]) -> MpsPod:
    """Return the pod with the image that it runs already: another would end the daemon, and its clients with it."""
    for known in context.effects():
        if isinstance(known.effect, MpsPod) and known.effect.claim_uid == pod.claim_uid:
            of_release = known.effect.model_dump(include={"image", "pull_secrets", "environment"})
            return pod.model_copy(update=of_release)
    return pod


def _folder_effect(folder: MpsFolder, context: dra.Context[Settings]) -> MakeMpsFolder:
    """Return the folder as it is, or as the settings want a new one: what is in use keeps its size.

    Raises:
        PermanentError: what the driver mounts is not seen on the host.
    """
    settings = context.settings
    for known in context.effects():
        if isinstance(known.effect, MakeMpsFolder) and known.effect.folder == folder:
            return known.effect
    if settings.host_root != Path("/") and not is_propagated(folder.path.parent):
        if not settings.mps_unlimited:
            raise dra.PermanentError(
                f"{folder.path.parent}: the host does not see what the driver's container mounts there; mount it with "
                "mountPropagation: Bidirectional (node.extraVolumeMounts of the chart), or set --mps-unlimited "
                "(node.settings.mps_unlimited)"
            )
        return MakeMpsFolder(folder=folder, size=0)
    return MakeMpsFolder(folder=folder, size=settings.mps_shm_bytes, unlimited=settings.mps_unlimited)


def _edits(folder: MpsFolder) -> dra.ContainerEdits:
    """Sockets at the host's path, so that containers of one claim with different daemons never meet on one.

    A client connects to them, and writes nothing beside them: read-only, as NVIDIA's container toolkit mounts them, no
    container puts anything in their place.
    """
    sockets, memory = str(folder.pipe), str(folder.shm)
    return dra.ContainerEdits(
        env={"CUDA_MPS_PIPE_DIRECTORY": sockets},
        mounts=[
            dra.Mount(host_path=sockets, container_path=sockets, options=["ro", "nosuid", "nodev", "noexec"]),
            # server and clients exchange data there
            dra.Mount(host_path=memory, container_path="/dev/shm", options=["nosuid", "nodev", "noexec"]),
        ],
    )
