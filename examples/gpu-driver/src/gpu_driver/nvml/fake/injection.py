"""Fault injection for tests, from any process of the node; profiles have ``events`` for it."""

from gpu_driver.nvml.backend import WHOLE_GPU, NvmlEvent, RecoveryAction
from gpu_driver.nvml.fake.fake import FakeNvml
from gpu_driver.nvml.fake.state import GpuState, State


def xid(state: State, uuid: str, number: int, *, gpu_instance: int = WHOLE_GPU) -> None:
    """Report an XID error of a GPU."""
    with state.changing() as node:
        node.add(NvmlEvent("xid", uuid, number, gpu_instance))


def lose(state: State, uuid: str) -> None:
    """Let the GPU fall off the bus: every call for it fails from now on."""
    with state.changing() as node:
        node.gpus[uuid].lost = True
        node.add(NvmlEvent("lost", uuid))


def find(state: State, uuid: str) -> None:
    """Bring a lost GPU back."""
    with state.changing() as node:
        node.gpus[uuid].lost = False


def want_recovery(state: State, uuid: str, action: RecoveryAction) -> None:
    """Let the driver ask for something that makes the GPU healthy; ``NONE``: it is healthy."""
    with state.changing() as node:
        node.gpus[uuid].recovery = action
        node.add(NvmlEvent("recovery", uuid))


def reboot(nvml: FakeNvml) -> None:
    """Restart the node: no MIG instance survives that, nor any setting but MIG mode on GPUs before Hopper."""
    profile = nvml.profile
    tables = {gpu.uuid: profile.type_of(gpu).mig for gpu in profile.gpus}
    with nvml.state.changing() as node:
        node.boot += 1
        for uuid, gpu in node.gpus.items():
            table = tables[uuid]
            stays = table is not None and table.toggle == "reset" and gpu.mig_pending
            node.gpus[uuid] = GpuState(mig_current=stays, mig_pending=stays, made=gpu.made)
