"""What the models of this folder have in common."""

from typing import Any, Self

import dra_kit as dra
from pydantic import BaseModel, ConfigDict, ValidationInfo

from gpu_driver.devices.names import camel
from gpu_driver.settings import Settings

API_VERSION = "resource.nvidia.com/v1beta1"
"""Group and version of NVIDIA's own driver: manifests written for it are taken as they are."""


class Part(BaseModel):
    """An object inside a config; its keys are camelCase in manifests."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, alias_generator=camel)


class Config(dra.OpaqueConfig):
    """A config; its keys are camelCase in manifests."""

    model_config = ConfigDict(frozen=True, alias_generator=camel)


class EnforceableConfig(Config):
    """A config by which a DeviceClass can bind the claims that use it; in a claim ``enforced`` changes nothing."""

    enforced: bool = False

    def refusal_of(self, config: Self) -> str:
        unmarked = [each.model_copy(update={"enforced": False}) for each in (self, config)]
        if not self.enforced or unmarked[0] == unmarked[1]:
            return ""
        return "the class enforces its own; remove the claim's, write the same, or use another DeviceClass"


def switched_on(gate: str, title: str, info: ValidationInfo) -> None:
    """Refuse what the driver's settings switch off; all is well where a config is read without a driver.

    Args:
        gate: the name of a bool of :class:`~gpu_driver.settings.Settings`.
        title: what it switches, as the manifest calls it.
        info: what pydantic gives validators.

    Raises:
        ValueError: naming the flag.
    """
    context: Any = info.context
    if isinstance(context, Settings) and not getattr(context, gate):
        raise ValueError(
            f"{title} is switched off in this driver; set --{gate.replace('_', '-')} (node.settings.{gate} of the "
            "chart), or leave it out"
        )
