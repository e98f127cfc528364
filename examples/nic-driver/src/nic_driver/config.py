"""The configuration that a claim or DeviceClass can set for a network interface."""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated

import dra_kit as dra
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

API_VERSION = "nic.example.com/v1"


def _interface_name(value: str) -> str:
    # the kernel's rule (dev_valid_name), without patterns such as net%d and the names that every pod has
    if not re.fullmatch(r"[^\s/:%\0]+", value) or len(value.encode()) > 15 or value in {".", "..", "lo", "eth0"}:
        raise ValueError(f"{value!r} is not a valid interface name; use 1 to 15 bytes, not lo or eth0")
    return value


def _interface_address(value: str) -> str:
    if "/" not in value:
        raise ValueError(f"{value!r} has no prefix length; write for example 10.1.2.3/24")
    return str(ipaddress.ip_interface(value))


InterfaceName = Annotated[str, AfterValidator(_interface_name)]
Address = Annotated[str, AfterValidator(_interface_address)]
Destination = Annotated[str, AfterValidator(lambda value: str(ipaddress.ip_network(value)))]
Gateway = Annotated[str, AfterValidator(lambda value: str(ipaddress.ip_address(value)))]


class Route(BaseModel):
    """A route in the pod: ``to`` a network such as ``10.20.0.0/16``, ``via`` a gateway or directly."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    to: Destination
    via: Gateway | None = None


class NicConfig(dra.OpaqueConfig, api_version=API_VERSION, for_devices={"linkType": ["ethernet", "infiniband"]}):
    """The keys of ``opaque.parameters`` in manifests. A claim keeps what its class sets and it does not set itself.

    Attributes:
        name: the name of the interface in the pod; None for its name on the node.
        mtu: its MTU in the pod; None for that on the node.
        addresses: its addresses with prefix length. They are not checked for duplicates in the network.
        routes: routes through it.
    """

    name: InterfaceName | None = None
    mtu: Annotated[int, Field(ge=68, le=65535)] | None = None
    addresses: Annotated[list[Address], Field(max_length=16)] = []
    routes: list[Route] = []


class CniConfig(dra.OpaqueConfig, api_version=API_VERSION, for_devices={"type": "cni"}):
    """How a pod joins a network through CNI plugins. A claim's config replaces that of its class.

    Attributes:
        interface: the name of the interface in the pod.
        conflist: the network, as in a file in ``/etc/cni/net.d``.
    """

    interface: InterfaceName
    conflist: dra.CniNetwork
