"""What befalls a GPU: a person, a test or a profile orders it, from any process of the node."""

from gpu_driver.nvml.backend import WHOLE_GPU, NvmlEvent, RecoveryAction
from gpu_driver.nvml.fake.state import EventState, NodeState, State


def xid(state: State, uuid: str, number: int, *, gpu_instance: int = WHOLE_GPU) -> None:
    """An XID error."""
    _happen(state, NvmlEvent("xid", uuid, number, gpu_instance))


def lose(state: State, uuid: str) -> None:
    """The GPU falls off the bus: every call for it fails from now on."""
    with state.changing() as node:
        node.gpus[uuid].lost = True
        _add(node, NvmlEvent("lost", uuid))


def find(state: State, uuid: str) -> None:
    """It is there again."""
    with state.changing() as node:
        node.gpus[uuid].lost = False


def want_recovery(state: State, uuid: str, action: RecoveryAction) -> None:
    """The driver asks for something that makes the GPU healthy; ``NONE``: it is healthy."""
    with state.changing() as node:
        node.gpus[uuid].recovery = action
        _add(node, NvmlEvent("recovery", uuid))


def reboot(state: State) -> None:
    """The node is started again: no MIG instance survives that, nor any other setting but MIG mode on old GPUs."""
    with state.changing() as node:
        node.boot += 1
        for gpu in node.gpus.values():
            mode = gpu.mig_pending
            for name in ("compute_mode", "time_slice", "lost", "driver", "recovery", "persistence"):
                setattr(gpu, name, type(gpu).model_fields[name].default)
            gpu.instances = []
            gpu.mig_current = mode


def _happen(state: State, event: NvmlEvent) -> None:
    with state.changing() as node:
        _add(node, event)


def _add(node: NodeState, event: NvmlEvent) -> None:
    number = max((known.number for known in node.events), default=0) + 1
    node.events.append(
        EventState(
            number=number,
            kind=event.kind,
            uuid=event.uuid,
            xid=event.xid,
            gi=event.gpu_instance,
            ci=event.compute_instance,
        )
    )
    del node.events[:-100]
