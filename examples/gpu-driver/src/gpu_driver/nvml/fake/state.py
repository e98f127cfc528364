"""``State``: what has been done to the fake's GPUs, in a file that every process of the node shares.

As with real GPUs it outlives the driver, killed or not: each change is a new file, renamed over the old one, under
a lock.
"""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import BaseModel

from gpu_driver.nvml.backend import ComputeMode, GpuInstance, NvmlEvent, RecoveryAction

_KEPT = 100
"""Events; who listens reads them within seconds."""


class GpuState(BaseModel):
    """What has changed on one GPU; ``clients`` are processes on compute instances, by the instances' UUIDs."""

    compute_mode: ComputeMode = ComputeMode.DEFAULT
    time_slice: int = 0
    mig_current: bool = False
    mig_pending: bool = False
    instances: list[GpuInstance] = []
    clients: dict[str, list[int]] = {}
    lost: bool = False
    driver: str = "nvidia"
    persistence: bool = False
    recovery: RecoveryAction = RecoveryAction.NONE
    made: int = 0


class NodeState(BaseModel):
    """All GPUs, what happened to them, and how often each call was made while it has faults.

    ``events`` are numbered, and readers remember the number that they have read; ``began`` is when a process had the
    profile first, ``happened`` has the numbers of its events that are over.
    """

    boot: int = 0
    gpus: dict[str, GpuState] = {}
    events: list[tuple[int, NvmlEvent]] = []
    calls: dict[str, int] = {}
    began: float | None = None
    happened: list[int] = []

    def add(self, event: NvmlEvent) -> None:
        """Note an event for all who listen."""
        self.events.append((max((number for number, _ in self.events), default=0) + 1, event))
        del self.events[:-_KEPT]


class State:
    """The file; any number of processes and threads may read and change it. There is none while nothing is changed.

    Args:
        folder: where it is; made when it is not there.
        first: what it holds before anything was done.
        show: called under the lock with what it holds now, at the start and after each change.
    """

    def __init__(self, folder: Path, first: NodeState, show: Callable[[NodeState], None]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = folder / "state.json"
        self._lock = folder / "state.lock"
        self._first = first
        self._show = show
        with self._locked():
            show(self.read())

    def read(self) -> NodeState:
        """Return the state of the node as it is now."""
        try:
            return NodeState.model_validate_json(self._file.read_bytes())
        except FileNotFoundError:
            return self._first.model_copy(deep=True)

    @contextmanager
    def changing(self) -> Iterator[NodeState]:
        """Lock and change the state; if the block raises, nothing is written."""
        with self._locked():
            state = self.read()
            yield state
            if self._untouched(state):
                self._file.unlink(missing_ok=True)
            else:
                new = self._file.with_suffix(".new")
                new.write_text(state.model_dump_json(), encoding="utf-8")
                os.replace(new, self._file)
            self._show(state)

    def _untouched(self, state: NodeState) -> bool:
        """Return whether the state equals the initial one, except for the number of instances ever created."""
        forgotten = {uuid: gpu.model_copy(update={"made": 0}) for uuid, gpu in state.gpus.items()}
        return state.model_copy(update={"gpus": forgotten}) == self._first

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with self._lock.open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
