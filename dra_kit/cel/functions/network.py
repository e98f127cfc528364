"""IP addresses and networks."""

from __future__ import annotations

import ipaddress
import re
from typing import Any, Final, TypeAlias

from dra_kit.cel import types
from dra_kit.cel.declarations import Library
from dra_kit.cel.failure import Failure, no_such_overload
from dra_kit.cel.values import RUNTIME_TYPES

LIBRARY: Final = Library()

_Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address

_BITS: Final = re.compile(r"0|[1-9][0-9]{0,2}")


class IP:
    """An IP address, neither with a zone nor an IPv4 address mapped into IPv6."""

    __slots__ = ("address", "cost_size")

    def __init__(self, address: _Address) -> None:
        self.address: _Address = address
        self.cost_size = address.max_prefixlen // 8

    def equals(self, other: Any) -> bool:
        """Return ``self == other``."""
        if type(other) is not IP:
            raise no_such_overload()
        return self.address == other.address

    def __str__(self) -> str:
        return str(self.address)


class CIDR:
    """A network: an address with the number of leading bits that belong to it; other bits may be set."""

    __slots__ = ("address", "bits", "cost_size")

    def __init__(self, address: _Address, bits: int) -> None:
        self.address: _Address = address
        self.bits: int = bits
        self.cost_size: int = -(-bits // 8)

    def equals(self, other: Any) -> bool:
        """Return ``self == other``."""
        if type(other) is not CIDR:
            raise no_such_overload()
        return self.address == other.address and self.bits == other.bits

    def contains(self, address: _Address) -> bool:
        """Return whether an address belongs to the network."""
        if address.version != self.address.version:
            return False
        shift = address.max_prefixlen - self.bits
        return int(address) >> shift == int(self.address) >> shift

    def __str__(self) -> str:
        return f"{self.address}/{self.bits}"


RUNTIME_TYPES[IP] = types.IP
RUNTIME_TYPES[CIDR] = types.CIDR


def _parse_address(text: str) -> _Address:
    try:
        # no zone
        address = ipaddress.ip_address(text.replace("%", "/"))
    except ValueError:
        raise Failure(f"IP Address {text[:60]!r} parse error during conversion from string", "conversion") from None
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        raise Failure(f"IPv4-mapped IPv6 address {text[:60]!r} is not allowed", "conversion")
    return address


def _parse_network(text: str) -> CIDR:
    address_text, slash, bits = text.rpartition("/")
    if slash and _BITS.fullmatch(bits):
        address = _parse_address(address_text)
        if int(bits) <= address.max_prefixlen:
            return CIDR(address, int(bits))
    raise Failure(f"network address parse error during conversion from string: {text[:60]!r}", "conversion")


@LIBRARY.function("string_to_ip", "ip(string) -> ip")
def _ip(text: str) -> IP:
    return IP(_parse_address(text))


@LIBRARY.function("is_ip", "isIP(string) -> bool")
def _is_ip(text: str) -> bool:
    try:
        _parse_address(text)
    except Failure:
        return False
    return True


@LIBRARY.function("ip_is_canonical", "ip.isCanonical(string) -> bool")
def _is_canonical(text: str) -> bool:
    return str(_parse_address(text)) == text


@LIBRARY.function("cidr_to_string", "string(cidr) -> string")
@LIBRARY.function("ip_to_string", "string(ip) -> string")
def _to_string(value: IP | CIDR) -> str:
    return str(value)


@LIBRARY.method("ip_family", "family(ip) -> int")
def _family(value: IP) -> int:
    return value.address.version


@LIBRARY.method("ip_is_unspecified", "isUnspecified(ip) -> bool")
def _is_unspecified(value: IP) -> bool:
    return value.address.is_unspecified


@LIBRARY.method("ip_is_loopback", "isLoopback(ip) -> bool")
def _is_loopback(value: IP) -> bool:
    return value.address.is_loopback


@LIBRARY.method("ip_is_link_local_multicast", "isLinkLocalMulticast(ip) -> bool")
def _is_link_local_multicast(value: IP) -> bool:
    if value.address.version == 4:
        return int(value.address) >> 8 == 0xE00000
    return (int(value.address) >> 112) & 0xFF0F == 0xFF02


@LIBRARY.method("ip_is_link_local_unicast", "isLinkLocalUnicast(ip) -> bool")
def _is_link_local_unicast(value: IP) -> bool:
    return value.address.is_link_local


@LIBRARY.method("ip_is_global_unicast", "isGlobalUnicast(ip) -> bool")
def _is_global_unicast(value: IP) -> bool:
    address = value.address
    if address.version == 4 and int(address) == 0xFFFFFFFF:
        return False
    return not (address.is_unspecified or address.is_loopback or address.is_multicast or address.is_link_local)


@LIBRARY.function("string_to_cidr", "cidr(string) -> cidr")
def _cidr(text: str) -> CIDR:
    return _parse_network(text)


@LIBRARY.function("is_cidr", "isCIDR(string) -> bool")
def _is_cidr(text: str) -> bool:
    try:
        _parse_network(text)
    except Failure:
        return False
    return True


@LIBRARY.method("cidr_contains_ip_string", "containsIP(cidr, string) -> bool")
def _contains_ip_text(value: CIDR, text: str) -> bool:
    return value.contains(_parse_address(text))


@LIBRARY.method("cidr_contains_ip_ip", "containsIP(cidr, ip) -> bool")
def _contains_ip(value: CIDR, other: IP) -> bool:
    return value.contains(other.address)


@LIBRARY.method("cidr_contains_cidr_string", "containsCIDR(cidr, string) -> bool")
def _contains_cidr_text(value: CIDR, text: str) -> bool:
    return _covers(value, _parse_network(text))


@LIBRARY.method("cidr_contains_cidr", "containsCIDR(cidr, cidr) -> bool")
def _contains_cidr(value: CIDR, other: CIDR) -> bool:
    return _covers(value, other)


def _covers(value: CIDR, other: CIDR) -> bool:
    return value.bits <= other.bits and value.contains(other.address)


@LIBRARY.method("cidr_ip", "ip(cidr) -> ip")
def _address(value: CIDR) -> IP:
    return IP(value.address)


@LIBRARY.method("cidr_masked", "masked(cidr) -> cidr")
def _masked(value: CIDR) -> CIDR:
    shift = value.address.max_prefixlen - value.bits
    return CIDR(type(value.address)(int(value.address) >> shift << shift), value.bits)


@LIBRARY.method("cidr_prefix_length", "prefixLength(cidr) -> int")
def _prefix_length(value: CIDR) -> int:
    return value.bits
