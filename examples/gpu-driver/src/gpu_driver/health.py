"""``GpuHealth``: how the GPUs are, from NVML's events and from what it asks for to make a GPU healthy again."""

import time
from collections.abc import Iterable, Iterator, Sequence

import dra_kit as dra

from gpu_driver.devices.gpu import Gpu
from gpu_driver.hardware import Hardware
from gpu_driver.host import pci
from gpu_driver.nvml.backend import WHOLE_GPU, EventSet, NvmlEvent, RecoveryAction
from gpu_driver.nvml.errors import LOST, NvmlError, NvmlReturn
from gpu_driver.settings import Settings

Report = dra.Healthy | dra.Unhealthy | dra.HealthUnknown

APPLICATION_XIDS = frozenset({13, 31, 43, 45, 68, 109})
"""XIDs of programs, which leave the GPU well (NVIDIA's XID catalogue): for drivers without recovery actions."""


class GpuHealth(dra.HealthSource[Gpu, Hardware, Settings]):
    """Reports XIDs, GPUs that fell off the bus, and the recovery that the driver asks for."""

    policy = {
        "xid": dra.HealthRule(taint="NoSchedule", sticky=True),
        "application-xid": dra.HealthRule(taint="None", report=False),
        "recovery": dra.HealthRule(taint="NoSchedule"),
        "gpu-lost": dra.HealthRule(taint="NoSchedule", sticky=True),
        "unmonitored": dra.HealthRule(taint="None", report=False),
    }
    wait = 5.0
    """Seconds that an event is waited for before GPUs are looked at."""
    forget_after = 600.0
    """Seconds after which an XID of a program is old news."""

    def __init__(self) -> None:
        self._fatal: set[str] = set()
        self._programs: dict[str, float] = {}

    def watch(self) -> Iterator[Report]:
        listening: frozenset[str] = frozenset()
        events: EventSet | None = None
        try:
            while True:
                # one that is lost or passed through registers nothing, and is listened to once it is back
                there = {facts.uuid for facts in self.hardware.nvml.gpus()}
                uuids = frozenset(device.uuid for device in self.devices if device.uuid in there)
                if events is None or uuids != listening:
                    if events is not None:
                        events.close()
                    events, listening = self.hardware.nvml.events(sorted(uuids)), uuids
                    yield from self._unmonitored(events)
                yield from self._look()
                try:
                    event = events.wait(self.wait)
                except NvmlError as error:
                    if error.code is not NvmlReturn.UNINITIALIZED:
                        raise
                    events.close()  # NVML was closed, for a GPU that changes hands
                    events, event = None, None
                if event is not None:
                    yield from self._happened(event)
        finally:
            if events is not None:
                events.close()

    def recovered(self, device: Gpu, reason: str) -> bool:
        """Return whether a fatal XID is over or a lost GPU answers again. After an error the taint stays."""
        try:
            action = self.hardware.nvml.recovery_action(device.uuid)
        except NvmlError as error:
            if error.code in LOST:
                return False
            if error.code is not NvmlReturn.NOT_SUPPORTED:
                raise
            # old drivers have none: what this process has seen stays
            return reason != "xid" or device.uuid not in self._fatal
        return action is RecoveryAction.NONE

    def _unmonitored(self, events: EventSet) -> Iterator[Report]:
        for device in self.devices:
            if device.uuid in events.unmonitored:
                yield dra.Unhealthy(device, "unmonitored", "NVML registers no events for this GPU")
            else:
                yield dra.Healthy(device, "unmonitored")

    def _look(self) -> Iterator[Report]:
        """Report what is known without an event, such as what happened before the driver started."""
        for uuid in dict.fromkeys(device.uuid for device in self.devices):
            parts = [device for device in self.devices if device.uuid == uuid]
            try:
                action = self.hardware.nvml.recovery_action(uuid)
            except NvmlError as error:
                if error.code is not NvmlReturn.NOT_SUPPORTED:
                    yield from self._silent(parts, error)
                    continue
                action = RecoveryAction.NONE  # an old driver, which asks for nothing
            if action is RecoveryAction.NONE:
                yield from _well(parts, "recovery")
            else:
                yield from _ill(parts, "recovery", f"the driver asks for {_words(action)}", value=action.name.lower())
            if time.monotonic() - self._programs.get(uuid, time.monotonic()) >= self.forget_after:
                del self._programs[uuid]
                yield from _well(parts, "application-xid")

    def _silent(self, parts: Sequence[Gpu], error: NvmlError) -> Iterator[Report]:
        passed_through = pci.bound_driver(self.hardware.host, parts[0].pci_bus_id) == pci.VFIO
        if error.code in LOST and not passed_through:
            yield from _ill(parts, "gpu-lost", "it does not answer any more")
        else:
            yield from (dra.HealthUnknown(device) for device in parts)

    def _happened(self, event: NvmlEvent) -> Iterator[Report]:
        parts = list(self._concerned(event))
        if event.kind == "lost":
            # where NVML does not tell which it is, the look that comes next does
            yield from _ill(parts if event.uuid else (), "gpu-lost", "it fell off the bus")
        elif event.kind == "xid":
            if self._by_program(event):
                self._programs[event.uuid] = time.monotonic()
                yield from _ill(parts, "application-xid", f"XID {event.xid}, of a program", value=str(event.xid))
            else:
                self._fatal |= {part.uuid for part in parts}
                yield from _ill(parts, "xid", f"XID {event.xid}", value=str(event.xid))

    def _by_program(self, event: NvmlEvent) -> bool:
        if not event.uuid:
            return False
        try:
            return self.hardware.nvml.recovery_action(event.uuid) is RecoveryAction.NONE
        except NvmlError:
            return event.xid in APPLICATION_XIDS

    def _concerned(self, event: NvmlEvent) -> Iterable[Gpu]:
        """Return the devices that an event concerns: all, where NVML does not know the GPU."""
        parts = [device for device in self.devices if event.uuid in {"", device.uuid}]
        if event.gpu_instance == WHOLE_GPU:
            return parts
        try:
            instances = self.hardware.nvml.gpu_instances(event.uuid)
        except NvmlError:
            return parts  # which part it was is not known any more
        places = [(item.profile_id, item.placement.start) for item in instances if item.id == event.gpu_instance]
        on_it = [
            device
            for device in parts
            if device.partition is not None and (device.partition.profile_id, device.partition.start) in places
        ]
        return on_it or parts


def _ill(devices: Iterable[Gpu], reason: str, text: str, value: str = "") -> Iterator[Report]:
    for device in devices:
        yield dra.Unhealthy(device, reason, text, value=value)


def _well(devices: Iterable[Gpu], reason: str) -> Iterator[Report]:
    for device in devices:
        yield dra.Healthy(device, reason)


def _words(action: RecoveryAction) -> str:
    return {
        RecoveryAction.GPU_RESET: "a reset of the GPU (nvidia-smi --gpu-reset)",
        RecoveryAction.NODE_REBOOT: "a reboot of the node",
        RecoveryAction.DRAIN_P2P: "its peer-to-peer traffic to be drained",
        RecoveryAction.DRAIN_AND_RESET: "the node to be drained and the GPU to be reset",
    }.get(action, action.name)
