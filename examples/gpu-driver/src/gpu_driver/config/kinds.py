"""The kinds of config, each for its kind of device."""

from typing import Literal, Self

from pydantic import Field, ValidationInfo, model_validator

from gpu_driver.config.base import API_VERSION, Config, EnforceableConfig, Part, switched_on
from gpu_driver.config.sharing import GpuSharing, MigDeviceSharing


class GpuConfiguration(Config, api_version="gpu.resource.nvidia.com/v1alpha1"):
    """A config for GPUs as talks and early manifests write it."""

    sharing: GpuSharing | None = None

    def upgrade(self) -> "GpuConfig":
        return GpuConfig(sharing=self.sharing)


class GpuConfig(
    EnforceableConfig, api_version=API_VERSION, upgrades_from=[GpuConfiguration], for_devices={"type": "gpu"}
):
    """For whole GPUs, and for a share of one's memory."""

    sharing: GpuSharing | None = None


class MigDeviceConfig(EnforceableConfig, api_version=API_VERSION, for_devices={"type": "mig"}):
    """For MIG devices."""

    sharing: MigDeviceSharing | None = None


class Iommu(Part):
    """How the virtual machine's monitor reaches the GPU."""

    backend_policy: Literal["LegacyOnly", "PreferIommuFD"] = "LegacyOnly"
    enable_api_device: bool = Field(default=False, alias="enableAPIDevice")


class VfioDeviceConfig(EnforceableConfig, api_version=API_VERSION, for_devices={"type": "vfio"}):
    """For GPUs in passthrough."""

    iommu: Iommu = Iommu()

    @model_validator(mode="after")
    def _served(self, info: ValidationInfo) -> Self:
        switched_on("passthrough", "VfioDeviceConfig", info)
        return self
