"""``status.devices`` of a claim: what drivers say of the devices they prepared."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from dra_kit.resource.v1.base import APIModel, Int64, Time


class Condition(APIModel, frozen=True):
    """``metav1.Condition``; ``status`` is True, False or Unknown."""

    type: str = ""
    status: str = ""
    observed_generation: Int64 | None = None
    last_transition_time: Time | None = None
    reason: str = ""
    message: str = ""


class NetworkDeviceData(APIModel, frozen=True):
    """A network device as the pod sees it; ``ips`` are interface addresses in CIDR form."""

    interface_name: str = ""
    ips: tuple[str, ...] = ()
    hardware_address: str = ""


class AllocatedDeviceStatus(APIModel, frozen=True):
    """The driver's word on one allocated device; ``data`` is a JSON object in the driver's own format."""

    driver: str = ""
    pool: str = ""
    device: str = ""
    share_id: str | None = Field(default=None, alias="shareID")
    conditions: tuple[Condition, ...] = ()
    data: Any = None
    network_data: NetworkDeviceData | None = None
