"""Events of the real NVML."""

import threading
import time
from collections.abc import Sequence
from typing import Any

from gpu_driver.nvml.backend import NvmlEvent
from gpu_driver.nvml.errors import NvmlError, NvmlReturn
from gpu_driver.nvml.session import Session

_XID = 0x8
_UNAVAILABLE = 0x4000
_RECOVERY = 0x8000
"""``nvmlEventType…``: XIDs, GPUs that are not available, recovery actions; old drivers know the first alone."""

_SLICE = 0.5
"""Seconds that one call waits: closing takes effect within them, and a signal does not have to."""


class LibraryEvents:
    """An :class:`~gpu_driver.nvml.backend.EventSet` of NVML.

    Args:
        session: with NVML; when it ends, so does the set: ``wait`` raises ``UNINITIALIZED`` from then on.
        number: of the session that is open now.
        uuids: the GPUs to listen to.

    Raises:
        NvmlError: NVML cannot create an event set. A GPU whose events cannot be registered does not raise.
    """

    def __init__(self, session: Session, number: int, uuids: Sequence[str]) -> None:
        self._session = session
        self._number = number
        self._lock = threading.Lock()
        self._was_lost = False
        self._closed = False
        self._set: Any = session.call("nvmlEventSetCreate")
        self._unmonitored = tuple(uuid for uuid in uuids if not self._register(uuid))

    @property
    def unmonitored(self) -> Sequence[str]:
        return self._unmonitored

    def wait(self, timeout: float) -> NvmlEvent | None:
        until = time.monotonic() + timeout
        while True:
            left = until - time.monotonic()
            event = self._next(max(0.0, min(left, _SLICE)))
            if event is not None or left <= 0:
                return event

    def close(self) -> None:
        self._closed = True  # who waits leaves after the slice, and would hold the lock again before anybody gets it
        with self._lock:
            closed, self._set = self._set, None
        try:
            if closed is not None:
                with self._session.using(self._number):
                    self._session.call("nvmlEventSetFree", closed)
        except NvmlError as error:
            if error.code is not NvmlReturn.UNINITIALIZED:  # the session took its event sets along
                raise

    def _next(self, seconds: float) -> NvmlEvent | None:
        if self._closed:
            raise NvmlError(NvmlReturn.UNINITIALIZED, "nvmlEventSetWait_v2")
        with self._lock, self._session.using(self._number):
            if self._set is None:
                return None
            try:
                data = self._session.call("nvmlEventSetWait_v2", self._set, int(seconds * 1000))
            except NvmlError as error:
                if error.code is NvmlReturn.TIMEOUT:
                    self._was_lost = False
                    return None
                if error.code is NvmlReturn.GPU_IS_LOST:
                    return self._lost(seconds)
                raise
            return self._event(data)

    def _lost(self, seconds: float) -> NvmlEvent | None:
        """Report a lost GPU; NVML does not return which, and returns so at each wait from then on, at once."""
        if self._was_lost:
            time.sleep(seconds)
            return None
        self._was_lost = True
        return NvmlEvent("lost", "")

    def _event(self, data: Any) -> NvmlEvent:
        uuid = self._session.uuid_of(data.device)
        if data.eventType == _XID:
            return NvmlEvent("xid", uuid, data.eventData, data.gpuInstanceId, data.computeInstanceId)
        return NvmlEvent("lost" if data.eventType == _UNAVAILABLE else "recovery", uuid)

    def _register(self, uuid: str) -> bool:
        try:
            known = self._session.on(uuid, "nvmlDeviceGetSupportedEventTypes")
            wanted = known & (_XID | _UNAVAILABLE | _RECOVERY)
            if wanted:
                self._session.on(uuid, "nvmlDeviceRegisterEvents", wanted, self._set)
        except NvmlError:
            return False
        return bool(wanted)
