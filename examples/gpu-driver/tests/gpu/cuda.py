"""A program that uses CUDA, as containers have them: ``python cuda.py MIB [SECONDS]`` prints what it finds as JSON.

It needs the driver's ``libcuda.so.1`` alone, and the standard library.
"""

import ctypes
import json
import os
import sys
import time
import uuid
from typing import Any

_MULTIPROCESSORS = 16
"""``CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT``."""


class CudaError(Exception):
    """A call failed; its name and the code of ``CUresult``."""


class Cuda:
    """The driver API (cuda.h)."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", 0)

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function.

        Raises:
            CudaError: it fails.
        """
        code = getattr(self._library, name)(*arguments)
        if code:
            raise CudaError(f"{name}: {code}")

    def number(self, name: str, *arguments: Any) -> int:
        """Return what a function writes to its first argument."""
        found = ctypes.c_int()
        self.call(name, ctypes.byref(found), *arguments)
        return found.value

    def device(self, index: int, mebibytes: int, seconds: float) -> dict[str, Any]:
        """Return what a program sees of a device, and whether it gets so much memory there, so long, and can use it."""
        handle = self.number("cuDeviceGet", index)
        name, identity = ctypes.create_string_buffer(100), (ctypes.c_ubyte * 16)()
        self.call("cuDeviceGetName", name, len(name), handle)
        self.call("cuDeviceGetUuid_v2", identity, handle)
        context, free, total = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), handle)
        self.call("cuCtxSetCurrent", context)
        self.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return {
            "name": name.value.decode(),
            "uuid": f"GPU-{uuid.UUID(bytes=bytes(identity))}",
            "multiprocessors": self.number("cuDeviceGetAttribute", _MULTIPROCESSORS, handle),
            "memory_mib": total.value >> 20,
            "gets_memory": self._gets_memory(mebibytes << 20, seconds),
        }

    def _gets_memory(self, size: int, seconds: float) -> bool:
        until = time.monotonic() + seconds
        try:
            while True:
                place = ctypes.c_void_p()
                self.call("cuMemAlloc_v2", ctypes.byref(place), ctypes.c_size_t(size))
                self.call("cuMemsetD8_v2", place, ctypes.c_ubyte(1), ctypes.c_size_t(size))
                self.call("cuCtxSynchronize")
                self.call("cuMemFree_v2", place)
                if time.monotonic() >= until:
                    return True
                time.sleep(0.1)
        except CudaError:
            return False


def main() -> None:
    """Print it."""
    cuda, mebibytes, seconds = Cuda(), int(sys.argv[1]), float((sys.argv[2:] or ["0"])[0])
    devices = [cuda.device(index, mebibytes, seconds) for index in range(cuda.number("cuDeviceGetCount"))]
    print(json.dumps({"user": os.getuid(), "devices": devices}), flush=True)


if __name__ == "__main__":
    main()
