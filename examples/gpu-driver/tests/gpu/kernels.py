"""One client of a GPU: ``python kernels.py torch|own SECONDS SIZE…``; ``make bench-gpu`` runs several at once.

For each size of kernels, large or small, it prints ``ready``, waits for a line, lets kernels run for so long, and
prints as JSON how many operations they did, in what time, and how long each synchronisation took. With ``own`` it needs
the driver's ``libcuda.so.1`` and the standard library alone.
"""

import ctypes
import json
import sys
import time
from pathlib import Path
from typing import Any, Protocol

# Four chains, so that a thread does not wait for its last result.
_PTX = b"""
.version 6.0
.target sm_50
.address_size 64
.visible .entry work(.param .u64 results, .param .u32 rounds)
{
    .reg .f32 %f<6>;
    .reg .u32 %r<6>;
    .reg .u64 %d<4>;
    .reg .pred %p;
    ld.param.u64 %d1, [results];
    ld.param.u32 %r1, [rounds];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.u32 %r5, %r2, %r3, %r4;
    cvt.rn.f32.u32 %f1, %r5;
    mov.f32 %f2, %f1;
    mov.f32 %f3, %f1;
    mov.f32 %f4, %f1;
    mov.f32 %f5, 0f3F000000;
AGAIN:
""" + b"".join(b"    fma.rn.f32 %%f%d, %%f%d, %%f5, %%f5;\n" % (chain, chain) for chain in (1, 2, 3, 4) * 4) + b"""
    sub.u32 %r1, %r1, 1;
    setp.ne.u32 %p, %r1, 0;
    @%p bra AGAIN;
    add.f32 %f1, %f1, %f2;
    add.f32 %f3, %f3, %f4;
    add.f32 %f1, %f1, %f3;
    mul.wide.u32 %d2, %r5, 4;
    add.u64 %d3, %d1, %d2;
    st.global.f32 [%d3], %f1;
    ret;
}
\0"""  # fmt: skip
_THREADS = 256
_PER_ROUND = 32
"""Operations of a thread in a round: 16 multiply-adds."""
_WARM_UP = 0.3
"""Seconds until clocks and caches are as in use."""
_MULTIPROCESSORS = 16
"""``CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT``."""


class Kernels(Protocol):
    """What runs on the GPU.

    Attributes:
        flop: floating-point operations of a step.
    """

    flop: float

    def step(self) -> None:
        """Let some kernels run, and wait until they have ended."""


class Products:
    """Products of bf16 matrices with PyTorch: four of 8192², or eight of 512², as the steps of a small model are."""

    def __init__(self, *, large: bool) -> None:
        sys.path[:] = [path for path in sys.path if path != str(Path(__file__).parent)]  # it has modules of other names
        import torch  # type: ignore[import-not-found, unused-ignore]

        size, self._count = (8192, 4) if large else (512, 8)
        self._torch = torch
        self._factors = [torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(2)]
        self._product = torch.empty_like(self._factors[0])
        self.flop = 2.0 * size**3 * self._count

    def step(self) -> None:
        for _ in range(self._count):
            self._torch.matmul(*self._factors, out=self._product)
        self._torch.cuda.synchronize()


class MultiplyAdds:
    """Chains of fp32 multiply-adds: two kernels that fill the GPU for some ms, or eight of 16 blocks that are short."""

    def __init__(self, *, large: bool) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")
        device, processors, handle = ctypes.c_int(), ctypes.c_int(), ctypes.c_void_p()
        self._call("cuInit", 0)
        self._call("cuDeviceGet", ctypes.byref(device), 0)
        self._call("cuDeviceGetAttribute", ctypes.byref(processors), _MULTIPROCESSORS, device)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(handle), device)
        self._call("cuCtxSetCurrent", handle)
        module, self._function, self._results = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint64()
        self._call("cuModuleLoadData", ctypes.byref(module), _PTX)
        self._call("cuModuleGetFunction", ctypes.byref(self._function), module, b"work")
        self._blocks, rounds, self._count = (16 * processors.value, 20_000, 2) if large else (16, 200, 8)
        self._call("cuMemAlloc_v2", ctypes.byref(self._results), ctypes.c_size_t(4 * self._blocks * _THREADS))
        self._rounds = ctypes.c_uint32(rounds)
        self.flop = float(self._count * self._blocks * _THREADS * rounds * _PER_ROUND)

    def step(self) -> None:
        pointers = [ctypes.cast(ctypes.byref(value), ctypes.c_void_p) for value in (self._results, self._rounds)]
        arguments = (ctypes.c_void_p * 2)(*pointers)
        for _ in range(self._count):
            grid = (self._blocks, 1, 1, _THREADS, 1, 1)
            self._call("cuLaunchKernel", self._function, *grid, 0, None, arguments, None)
        self._call("cuCtxSynchronize")

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._library, name)(*arguments)
        if code:
            sys.exit(f"{name} failed with CUresult {code}")


def measure(kernels: Kernels, seconds: float) -> dict[str, Any]:
    """Return the operations, the time that they took, and the time of each step in milliseconds."""
    begin = now = time.perf_counter()
    latencies = []
    while now - begin < seconds:
        before = now
        kernels.step()
        now = time.perf_counter()
        latencies.append(round((now - before) * 1000, 4))
    return {"flop": kernels.flop * len(latencies), "seconds": now - begin, "latencies_ms": latencies}


def main() -> None:
    """Measure, as the arguments say."""
    engine, seconds, *sizes = sys.argv[1:]
    kinds: dict[str, type[Products | MultiplyAdds]] = {"torch": Products, "own": MultiplyAdds}
    for size in sizes:
        kernels = kinds[engine](large=size == "large")
        measure(kernels, _WARM_UP)
        print("ready", flush=True)
        sys.stdin.readline()
        print(json.dumps(measure(kernels, float(seconds))), flush=True)


if __name__ == "__main__":
    main()
