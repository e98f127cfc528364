"""``Session``: NVML, loaded from the driver root, opened once, and opened again when the driver was restarted."""

import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from gpu_driver.nvml.binding import pynvml
from gpu_driver.nvml.errors import NvmlError, NvmlReturn

T = TypeVar("T")

_NO_GPUS = 1
"""``NVML_INIT_FLAG_NO_GPUS``: no error if all GPUs of the node are passed through to virtual machines."""

_OVER = {NvmlReturn.UNINITIALIZED, NvmlReturn.DRIVER_NOT_LOADED, NvmlReturn.LIB_RM_VERSION_MISMATCH}
"""Return codes of a session that is over: it was closed, or the driver was replaced."""

_NOT_THERE = {NvmlReturn.NOT_SUPPORTED, NvmlReturn.FUNCTION_NOT_FOUND}
"""Return codes for a function that this GPU or this driver does not support."""


class Session:
    """NVML, open. The binding is one for the whole process, and so are its sessions.

    Calls come from any thread: NVML orders those that must be. Opening and closing wait for those that are under way,
    since handles and event sets do not outlive the session that they are of.

    Args:
        library: the shared object; loaded each time a session is opened, because an upgrade of the driver replaces it.
    """

    def __init__(self, library: Path) -> None:
        self._library = library
        self._changed = threading.Condition()
        self._users = 0
        self._closing = False
        self._number = 0
        self._is_open = False
        self._handles: dict[str, Any] = {}

    @property
    def number(self) -> int:
        """Of the session that is open, or was last."""
        return self._number

    def run(self, operation: Callable[[], T]) -> T:
        """Run an operation, once more in a new session if this one turns out to be over; return its result.

        Raises:
            NvmlError: a call failed.
        """
        number = 0
        try:
            with self.using() as number:
                return operation()
        except NvmlError as error:
            if error.code not in _OVER:
                raise
        self.close(number)
        with self.using():
            return operation()

    @contextmanager
    def using(self, number: int | None = None) -> Iterator[int]:
        """Hold the session open meanwhile; yields its number.

        Args:
            number: of the session; None for any, which is opened where none is.

        Raises:
            NvmlError: ``UNINITIALIZED`` where that session is over; ``LIBRARY_NOT_FOUND``, ``DRIVER_NOT_LOADED`` or
                whatever else NVML returns when it is opened.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._closing)
            if number is None and not self._is_open:
                self._open()
            if not self._is_open or number not in {None, self._number}:
                raise NvmlError(NvmlReturn.UNINITIALIZED, "nvmlInitWithFlags")
            self._users += 1
            current = self._number
        try:
            yield current
        finally:
            with self._changed:
                self._users -= 1
                self._changed.notify_all()

    def close(self, number: int | None = None) -> None:
        """End the session; nothing where none is open, or another one than that of this number."""
        with self._changed:
            if self._closing or not self._is_open or number not in {None, self._number}:
                return
            self._closing = True
            try:
                self._end()
            finally:
                self._closing = False
                self._changed.notify_all()

    @contextmanager
    def closed(self) -> Iterator[None]:
        """Close the session during the block. Calls of other threads wait; a call of this thread would deadlock."""
        with self._changed:
            self._changed.wait_for(lambda: not self._closing)
            self._closing = True
        try:
            with self._changed:
                self._end()
            yield
        finally:
            with self._changed:
                self._closing = False
                self._changed.notify_all()

    def _end(self) -> None:
        self._changed.wait_for(lambda: self._users == 0)
        if not self._is_open:
            return
        self._is_open = False
        try:
            self.call("nvmlShutdown")
        except NvmlError as error:
            if error.code not in _OVER:
                raise

    def _open(self) -> None:
        _load(self._library)
        self.call("nvmlInitWithFlags", _NO_GPUS)
        self._is_open = True
        self._number += 1
        self._handles = {}

    def call(self, name: str, *arguments: Any, subject: str = "") -> Any:
        """Call a function of the binding.

        Raises:
            NvmlError: with the function's name and the GPU that it was called for.
        """
        try:
            return getattr(pynvml, name)(*arguments)
        except pynvml.NVMLError as error:
            raise NvmlError(NvmlReturn.of(error.value), name, subject) from None

    def on(self, uuid: str, name: str, *arguments: Any) -> Any:
        """Call a function of the binding for a GPU, whose handle comes first."""
        return self.call(name, self.handle(uuid), *arguments, subject=uuid)

    def supported(self, uuid: str, name: str, *arguments: Any) -> Any:
        """Call a function for a GPU; return None where this GPU or this driver does not know the question."""
        try:
            return self.on(uuid, name, *arguments)
        except NvmlError as error:
            if error.code not in _NOT_THERE:
                raise
            return None

    def handle(self, uuid: str) -> Any:
        """Return the handle of a GPU.

        It is cached, and looked up by index: looking by UUID fails for every GPU as soon as one of them is lost.
        """
        if uuid not in self._handles:
            for index in range(self.call("nvmlDeviceGetCount")):
                self._learn(index)
        if uuid not in self._handles:
            self._handles[uuid] = self.call("nvmlDeviceGetHandleByUUID", uuid, subject=uuid)
        return self._handles[uuid]

    def uuid_of(self, handle: Any) -> str:
        """Return the UUID of a GPU that NVML names by its handle, also when it is lost; empty where it is unknown."""
        address = ctypes.cast(handle, ctypes.c_void_p).value
        for uuid, known in list(self._handles.items()):
            if ctypes.cast(known, ctypes.c_void_p).value == address:
                return uuid
        try:
            found: str = self.call("nvmlDeviceGetUUID", handle)
        except NvmlError:
            return ""
        return found

    def at(self, index: int) -> str:
        """Return the UUID of the GPU of this index, for now.

        Raises:
            NvmlError: it is lost, or cannot be used for another reason.
        """
        handle = self.call("nvmlDeviceGetHandleByIndex", index, subject=f"index {index}")
        uuid: str = self.call("nvmlDeviceGetUUID", handle, subject=f"index {index}")
        self._handles[uuid] = handle
        return uuid

    def _learn(self, index: int) -> None:
        try:
            self.at(index)
        except NvmlError as error:
            if error.code in _OVER:
                raise


def _load(library: Path) -> None:
    """Give the binding its library, which it would only look for where the linker does."""
    try:
        loaded = ctypes.CDLL(str(library.resolve()))
    except OSError as error:
        raise NvmlError(NvmlReturn.LIBRARY_NOT_FOUND, "dlopen", str(error)) from None
    with pynvml.libLoadLock:
        if getattr(pynvml.nvmlLib, "_handle", None) != loaded._handle:
            pynvml.nvmlLib = loaded
            pynvml._nvmlGetFunctionPointer_cache.clear()  # functions of a library before an upgrade
