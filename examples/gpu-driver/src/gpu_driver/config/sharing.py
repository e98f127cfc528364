"""How the processes of a claim share a device: time-slicing, or MPS."""

from typing import Annotated, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from gpu_driver.config.base import Part, switched_on
from gpu_driver.config.pinned_memory import PinnedMemory, check_key

Interval = Literal["Default", "Short", "Medium", "Long"]
INTERVALS: dict[Interval, int] = {"Default": 0, "Short": 1, "Medium": 2, "Long": 3}
"""What ``nvidia-smi compute-policy --set-timeslice`` takes."""

_GATES = {"TimeSlicing": "time_slicing", "MPS": "mps"}


class TimeSlicingConfig(Part):
    """How long a process runs on the GPU before the next one does."""

    interval: Interval = "Default"


class MpsConfig(Part):
    """Limits of each client of the MPS control daemon; ``multi_user`` lets clients of several users in.

    MPS ignores a percentage of 0 (seen with driver 580), which would be an error only when the claim is prepared.
    """

    default_active_thread_percentage: Annotated[int, Field(ge=1, le=100)] | None = None
    default_pinned_device_memory_limit: PinnedMemory | None = None
    default_per_device_pinned_memory_limit: dict[str, PinnedMemory] = {}
    multi_user: bool = False

    @field_validator("default_per_device_pinned_memory_limit")
    @classmethod
    def _keys(cls, limits: dict[str, PinnedMemory]) -> dict[str, PinnedMemory]:
        for key in limits:
            check_key(key)
        return limits


class MigDeviceSharing(Part):
    """How a MIG device is shared; it has no time slice to set."""

    strategy: Literal["TimeSlicing", "MPS"]
    mps_config: MpsConfig | None = None

    @field_validator("strategy")
    @classmethod
    def _served(cls, strategy: str, info: ValidationInfo) -> str:
        switched_on(_GATES[strategy], f"strategy {strategy}", info)
        return strategy

    @model_validator(mode="after")
    def _mps_with_its_strategy(self) -> Self:
        if self.strategy == "TimeSlicing" and self.mps_config is not None:
            raise ValueError("mpsConfig goes with strategy MPS; remove it, or write strategy: MPS")
        return self

    @property
    def mps(self) -> MpsConfig:
        """The limits of MPS; none where the claim has none."""
        return self.mps_config or MpsConfig()


class GpuSharing(MigDeviceSharing):
    """How a whole GPU is shared."""

    time_slicing_config: TimeSlicingConfig | None = None

    @model_validator(mode="after")
    def _time_slice_with_its_strategy(self) -> Self:
        if self.strategy == "MPS" and self.time_slicing_config is not None:
            raise ValueError("timeSlicingConfig goes with strategy TimeSlicing; remove it, or write that strategy")
        return self

    @property
    def interval(self) -> Interval:
        """The time slice."""
        return (self.time_slicing_config or TimeSlicingConfig()).interval
