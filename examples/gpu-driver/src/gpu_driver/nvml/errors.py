"""Errors of NVML, by the name that NVIDIA gives them."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import IntEnum


class NvmlReturn(IntEnum):
    """``nvmlReturn_t`` of nvml.h, all but success."""

    UNINITIALIZED = 1
    INVALID_ARGUMENT = 2
    NOT_SUPPORTED = 3
    NO_PERMISSION = 4
    ALREADY_INITIALIZED = 5
    NOT_FOUND = 6
    INSUFFICIENT_SIZE = 7
    INSUFFICIENT_POWER = 8
    DRIVER_NOT_LOADED = 9
    TIMEOUT = 10
    IRQ_ISSUE = 11
    LIBRARY_NOT_FOUND = 12
    FUNCTION_NOT_FOUND = 13
    CORRUPTED_INFOROM = 14
    GPU_IS_LOST = 15
    RESET_REQUIRED = 16
    OPERATING_SYSTEM = 17
    LIB_RM_VERSION_MISMATCH = 18
    IN_USE = 19
    MEMORY = 20
    NO_DATA = 21
    VGPU_ECC_NOT_SUPPORTED = 22
    INSUFFICIENT_RESOURCES = 23
    FREQ_NOT_SUPPORTED = 24
    ARGUMENT_VERSION_MISMATCH = 25
    DEPRECATED = 26
    NOT_READY = 27
    GPU_NOT_FOUND = 28
    INVALID_STATE = 29
    RESET_TYPE_NOT_SUPPORTED = 30
    UNKNOWN = 999

    @classmethod
    def of(cls, number: int) -> "NvmlReturn":
        """Return the member of this number; ``UNKNOWN`` for one that newer drivers have."""
        return cls(number) if number in cls._value2member_map_ else cls.UNKNOWN


class NvmlError(Exception):
    """A call of NVML failed.

    Attributes:
        code: what NVML returned.
        call: the C function's name, for example ``nvmlDeviceCreateGpuInstanceWithPlacement``.
        subject: the UUID that it was called for; empty when for none.
    """

    def __init__(self, code: NvmlReturn, call: str, subject: str = "") -> None:
        self.code = code
        self.call = call
        self.subject = subject
        super().__init__(f"{call}{f' for {subject}' if subject else ''}: {code.name}")


REMEDIES: Mapping[NvmlReturn, str] = {
    NvmlReturn.GPU_IS_LOST: "it fell off the bus; delete the pod to get another GPU, and reset this one or its node",
    NvmlReturn.NOT_FOUND: "NVML does not list it; see nvidia-smi -L on the node, or delete the pod to get another GPU",
    NvmlReturn.RESET_REQUIRED: "it waits for a reset; drain the node, then nvidia-smi --gpu-reset",
    NvmlReturn.NO_PERMISSION: "the driver may not change it; run it as root, in a privileged container",
    NvmlReturn.DRIVER_NOT_LOADED: "NVIDIA's kernel modules are not loaded; see nvidia-smi on the node",
    NvmlReturn.LIB_RM_VERSION_MISMATCH: "library and kernel modules are of two releases; reboot the node",
}
"""What to do about a return code, where that does not depend on the call."""


LOST = frozenset({NvmlReturn.GPU_IS_LOST, NvmlReturn.NOT_FOUND})
"""Return codes for a GPU that fell off the bus: until NVML is opened again, and since."""


@contextmanager
def answering(answers: Mapping[NvmlReturn, Exception | None]) -> Iterator[None]:
    """Raise an error for people in the place of what NVML returns; None: it does not matter."""
    try:
        yield
    except NvmlError as error:
        if error.code not in answers:
            raise
        answer = answers[error.code]
        if answer is not None:
            raise answer from None
