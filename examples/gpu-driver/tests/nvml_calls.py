"""``python -m tests.nvml_calls LIBRARY``: what a ``libnvidia-ml.so.1`` answers to NVIDIA's binding, as JSON."""

import ctypes
import json
import sys
from collections.abc import Callable
from typing import Any

import pynvml

_GPUS = 2
_NO_UUID = "GPU-00000000-0000-0000-0000-00000000dead"
_XID = 8

Answer = dict[str, object]


def ask(library: str) -> Answer:
    """Make every call that a mock of another project may also answer; an error is recorded as its number."""
    pynvml.nvmlLib = ctypes.CDLL(library)
    found: Answer = {"nvmlDeviceGetCount before nvmlInit": _answer(pynvml.nvmlDeviceGetCount)}
    pynvml.nvmlInitWithFlags(1)
    found |= {
        "nvmlSystemGetDriverVersion": _answer(pynvml.nvmlSystemGetDriverVersion),
        "nvmlSystemGetCudaDriverVersion": _answer(pynvml.nvmlSystemGetCudaDriverVersion),
        "nvmlDeviceGetCount": _answer(pynvml.nvmlDeviceGetCount),
        "nvmlDeviceGetHandleByIndex of none": _answer(lambda: pynvml.nvmlDeviceGetHandleByIndex(99)),
        "nvmlDeviceGetHandleByUUID of none": _answer(lambda: pynvml.nvmlDeviceGetHandleByUUID(_NO_UUID)),
    }
    for index in range(_GPUS):
        found |= {f"{index} {name}": value for name, value in _of_gpu(index).items()}
    found |= _events()
    pynvml.nvmlShutdown()
    found["nvmlShutdown of none"] = _answer(_shutdown_of_none)
    return found


def _of_gpu(index: int) -> Answer:
    gpu = pynvml.nvmlDeviceGetHandleByIndex(index)
    uuid = pynvml.nvmlDeviceGetUUID(gpu)
    alone = (
        "UUID", "Name", "Serial", "MinorNumber", "Brand", "Architecture", "CudaComputeCapability", "ComputeMode",
        "MigMode", "MaxMigDeviceCount", "NumGpuCores", "AddressingMode", "SupportedEventTypes",
    )  # fmt: skip
    found = {
        f"nvmlDeviceGet{name}": _answer(lambda name=name: getattr(pynvml, f"nvmlDeviceGet{name}")(gpu))
        for name in alone
    }
    return found | {
        "nvmlDeviceGetPciInfo": _answer(lambda: _pci(pynvml.nvmlDeviceGetPciInfo(gpu))),
        "nvmlDeviceGetMemoryInfo": _answer(lambda: pynvml.nvmlDeviceGetMemoryInfo(gpu).total),
        "nvmlDeviceGetFieldValues of 230": _answer(lambda: _field(pynvml.nvmlDeviceGetFieldValues(gpu, [230])[0])),
        "nvmlDeviceGetHandleByUUID": _answer(lambda: _name_of(pynvml.nvmlDeviceGetHandleByUUID(uuid))),
        "nvmlDeviceGetMigDeviceHandleByIndex": _answer(lambda: pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, 0)),
        "nvmlDeviceGetGpuInstanceProfileInfo": _answer(lambda: pynvml.nvmlDeviceGetGpuInstanceProfileInfo(gpu, 0).id),
        "nvmlDeviceSetComputeMode of none": _answer(lambda: pynvml.nvmlDeviceSetComputeMode(gpu, 9)),
    }


def _events() -> Answer:
    events = pynvml.nvmlEventSetCreate()
    gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
    return {
        "nvmlDeviceRegisterEvents": _answer(lambda: pynvml.nvmlDeviceRegisterEvents(gpu, _XID, events)),
        "nvmlEventSetWait_v2": _answer(lambda: pynvml.nvmlEventSetWait_v2(events, 10)),
        "nvmlEventSetFree": _answer(lambda: pynvml.nvmlEventSetFree(events)),
    }


def _answer(call: Callable[[], Any]) -> object:
    try:
        return call()
    except pynvml.NVMLError as error:
        return f"error {error.value}"


def _pci(info: Any) -> object:
    return [info.domain, info.bus, info.device, info.pciDeviceId, info.busId, info.busIdLegacy]


def _field(value: Any) -> object:
    return f"error {value.nvmlReturn}" if value.nvmlReturn else value.value.uiVal


def _name_of(handle: Any) -> object:
    return pynvml.nvmlDeviceGetUUID(handle)


def _shutdown_of_none() -> None:
    code = pynvml.nvmlLib.nvmlShutdown()  # the binding's own forgets its library
    if code:
        raise pynvml.NVMLError(code)


if __name__ == "__main__":
    print(json.dumps(ask(sys.argv[1]), default=lambda value: f"a {type(value).__name__}"))
