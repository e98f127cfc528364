"""URLs, IP addresses and networks."""

from __future__ import annotations

import ipaddress
import re
from typing import Final, NoReturn, TypeAlias
from urllib.parse import quote_from_bytes, unquote, unquote_plus, unquote_to_bytes

from msgspec import Struct

from dra_kit.kubernetes.cel import types
from dra_kit.kubernetes.cel.failures import EvaluationFailure, succeeds
from dra_kit.kubernetes.cel.types import Library
from dra_kit.kubernetes.cel.values import RUNTIME_TYPES, StringMapValue

LIBRARY: Final = Library()
_SCHEME: Final = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*):")
_PORT: Final = re.compile(r"(?::[0-9]*)?")
_USER: Final = re.compile(r"[A-Za-z0-9\-._:~!$&'()*+,;=%@]*")
_HOST: Final = re.compile(r"[^\x00-\x20#/?@\\^`{|}\x7f]*")  # a range of half of Unicode takes 3 ms to compile
_HOST_ESCAPE: Final = re.compile(r"%(?:25|[89a-fA-F][0-9a-fA-F])")
_ESCAPE: Final = re.compile(r"%[0-9a-fA-F]{2}")
_PLAIN_PATH: Final = re.compile(r"(?:[A-Za-z0-9\-_.~$&+,/:;=@]|%[0-9A-Fa-f]{2})*")
_VALID_PATH: Final = re.compile(r"(?:[A-Za-z0-9\-_.~$&+,/:;=@!'()*\[\]]|%)*")


class URL:
    """A URL and its parts.

    Args:
        text: the URL.
        is_request: without a scheme, the text starts with the path, as in the first line of an HTTP request.

    Raises:
        EvaluationFailure: the text is not a URL.
    """

    __slots__ = ("authority", "fragment", "host", "opaque", "path", "query", "scheme")

    def __init__(self, text: str, *, is_request: bool = False) -> None:
        self.fragment: str
        self.scheme: str
        body, _, self.fragment = text.partition("#")
        self.scheme, rest = _split_scheme(body)
        rest, question, query = rest.partition("?")
        self.query: str = f"?{query}" if question else ""
        self.authority: str = ""
        self.host: str = ""
        self.opaque: str = ""
        if not rest.startswith("/") and self.scheme:
            self.opaque, rest = rest, ""
        elif rest.startswith("//") and (self.scheme or not (is_request or rest.startswith("///"))):
            authority, slash, path = rest[2:].partition("/")
            rest = slash + path
            user, at, host = authority.rpartition("@")
            if at and (not _USER.fullmatch(user) or not _unescapable(user)):
                _refuse("invalid userinfo")
            self.host = _parse_host(self.scheme, host)
            self.authority = f"//{user}{at}{self.host}"
        if not _unescapable(rest) or not _unescapable(self.fragment):
            _refuse("invalid URL escape")
        self.path: str = _escaped_path(rest)

    @property
    def _port_at(self) -> int:
        colon = self.host.rfind(":")
        return colon if colon >= 0 and _PORT.fullmatch(self.host[colon:]) else -1

    @property
    def hostname(self) -> str:
        """The host without port and brackets."""
        host = self.host[: self._port_at] if self._port_at >= 0 else self.host
        return host[1:-1] if host.startswith("[") and host.endswith("]") else host

    @property
    def port(self) -> str:
        """The port; empty if there is none."""
        return self.host[self._port_at + 1 :] if self._port_at >= 0 else ""

    def __eq__(self, other: object) -> bool:
        return self._text() == other._text() if isinstance(other, URL) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._text())

    def _text(self) -> tuple[str, ...]:
        return self.scheme, self.opaque, self.authority, self.path, self.query, self.fragment


RUNTIME_TYPES[URL] = types.URL


def _refuse(reason: str) -> NoReturn:
    raise EvaluationFailure(f"URL parse error during conversion from string: {reason}", "conversion")


def _split_scheme(text: str) -> tuple[str, str]:
    match = _SCHEME.match(text)
    if match is not None:
        return match[1].lower(), text[match.end() :]
    if text.startswith(":"):
        _refuse("missing protocol scheme")
    return "", text


def _unescapable(text: str) -> bool:
    return text.count("%") == len(_ESCAPE.findall(text))


def _parse_host(scheme: str, host: str) -> str:
    bracket = host.rfind("[")
    if bracket > 0:
        _refuse("invalid IP-literal")
    if bracket == 0:
        closing = host.rfind("]")
        if closing < 0:
            _refuse("missing ']' in host")
        port = host[closing + 1 :]
        _check_ipv6(host[1:closing])
    else:
        # only other schemes allow several colons, for lists of hosts
        colon = host.find(":") if scheme in {"http", "https"} else host.rfind(":")
        port = host[colon:] if colon >= 0 else ""
    if not _PORT.fullmatch(port):
        _refuse("invalid port after host")
    if not _HOST.fullmatch(host):
        _refuse("invalid character in host name")
    if host.count("%") != len(_HOST_ESCAPE.findall(host)):
        _refuse("invalid URL escape")
    return unquote(host)


def _check_ipv6(text: str) -> None:
    address, _, zone = text.partition("%25")
    try:
        ipaddress.IPv6Address(address)
    except ValueError:
        _refuse("invalid host")
    if text.endswith("%25") and not zone:
        _refuse("invalid host")


def _escaped_path(path: str) -> str:
    if _PLAIN_PATH.fullmatch(path) or _VALID_PATH.fullmatch(path):
        return path
    return quote_from_bytes(unquote_to_bytes(path), safe="$&+,/:;=@")


def is_request_uri(text: str) -> bool:
    """Return whether Go's ``ParseRequestURI`` accepts the text: an absolute URL or an absolute path."""
    if not text or any(ord(character) < 0x20 or character == "\x7f" for character in text):
        return False
    if text == "*":
        return True
    try:
        scheme, rest = _split_scheme(text)
        if not scheme and not rest.startswith("/"):
            return False
        URL(text.replace("#", "%23"), is_request=True)
    except EvaluationFailure:
        return False
    return True


@LIBRARY.function("string_to_url", "url(string) -> url")
def _url(text: str) -> URL:
    if not is_request_uri(text):
        _refuse("invalid URI for request")
    return URL(text)


LIBRARY.declare("is_url_string", "isURL(string) -> bool", is_request_uri)
LIBRARY.methods(
    {
        "url_get_scheme": ("getScheme(url) -> string", lambda value: value.scheme),
        "url_get_host": ("getHost(url) -> string", lambda value: value.host),
        "url_get_hostname": ("getHostname(url) -> string", lambda value: value.hostname),
        "url_get_port": ("getPort(url) -> string", lambda value: value.port),
        "url_get_escaped_path": ("getEscapedPath(url) -> string", lambda value: value.path),
    }
)


@LIBRARY.method("url_get_query", "getQuery(url) -> map(string, list(string))")
def _query(value: URL) -> StringMapValue:
    made: dict[str, list[str]] = {}
    for pair in value.query[1:].split("&"):
        key, _, text = pair.partition("=")
        if pair and ";" not in pair and _unescapable(pair):
            made.setdefault(unquote_plus(key), []).append(unquote_plus(text))
    return StringMapValue(made)


_Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
_BITS: Final = re.compile(r"0|[1-9][0-9]{0,2}")


class IP(Struct, frozen=True):
    """An IP address without a zone, and not an IPv4-mapped IPv6 address."""

    address: _Address

    @property
    def cost_size(self) -> int:
        """The size of its bytes."""
        return self.address.max_prefixlen // 8

    def __str__(self) -> str:
        return str(self.address)


class CIDR(Struct, frozen=True):
    """A network: an address and the length of its prefix; host bits may be set."""

    address: _Address
    bits: int

    @property
    def cost_size(self) -> int:
        """The size of its prefix in bytes."""
        return -(-self.bits // 8)

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
        raise EvaluationFailure(
            f"IP Address {text[:60]!r} parse error during conversion from string", "conversion"
        ) from None
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        raise EvaluationFailure(f"IPv4-mapped IPv6 address {text[:60]!r} is not allowed", "conversion")
    return address


def _parse_network(text: str) -> CIDR:
    address_text, slash, bits = text.rpartition("/")
    if slash and _BITS.fullmatch(bits):
        address = _parse_address(address_text)
        if int(bits) <= address.max_prefixlen:
            return CIDR(address, int(bits))
    raise EvaluationFailure(f"network address parse error during conversion from string: {text[:60]!r}", "conversion")


LIBRARY.functions(
    {
        "string_to_ip": ("ip(string) -> ip", lambda text: IP(_parse_address(text))),
        "ip_is_canonical": ("ip.isCanonical(string) -> bool", lambda text: str(_parse_address(text)) == text),
        "is_ip": ("isIP(string) -> bool", succeeds(_parse_address)),
        "ip_to_string": ("string(ip) -> string", str),
        "cidr_to_string": ("string(cidr) -> string", str),
        "string_to_cidr": ("cidr(string) -> cidr", _parse_network),
        "is_cidr": ("isCIDR(string) -> bool", succeeds(_parse_network)),
    }
)


def _is_link_local_multicast(value: IP) -> bool:
    if value.address.version == 4:
        return int(value.address) >> 8 == 0xE00000
    return (int(value.address) >> 112) & 0xFF0F == 0xFF02


def _is_global_unicast(value: IP) -> bool:
    address = value.address
    if address.version == 4 and int(address) == 0xFFFFFFFF:
        return False
    return not (address.is_unspecified or address.is_loopback or address.is_multicast or address.is_link_local)


LIBRARY.methods(
    {
        "ip_family": ("family(ip) -> int", lambda value: value.address.version),
        "ip_is_unspecified": ("isUnspecified(ip) -> bool", lambda value: value.address.is_unspecified),
        "ip_is_loopback": ("isLoopback(ip) -> bool", lambda value: value.address.is_loopback),
        "ip_is_link_local_multicast": ("isLinkLocalMulticast(ip) -> bool", _is_link_local_multicast),
        "ip_is_link_local_unicast": ("isLinkLocalUnicast(ip) -> bool", lambda value: value.address.is_link_local),
        "ip_is_global_unicast": ("isGlobalUnicast(ip) -> bool", _is_global_unicast),
    }
)


def _covers(value: CIDR, other: CIDR) -> bool:
    return value.bits <= other.bits and value.contains(other.address)


def _masked(value: CIDR) -> CIDR:
    shift = value.address.max_prefixlen - value.bits
    return CIDR(type(value.address)(int(value.address) >> shift << shift), value.bits)


LIBRARY.methods({
    "cidr_contains_ip_string": (
        "containsIP(cidr, string) -> bool", lambda value, text: value.contains(_parse_address(text))
    ),
    "cidr_contains_ip_ip": ("containsIP(cidr, ip) -> bool", lambda value, other: value.contains(other.address)),
    "cidr_contains_cidr_string": (
        "containsCIDR(cidr, string) -> bool", lambda value, text: _covers(value, _parse_network(text))
    ),
    "cidr_contains_cidr": ("containsCIDR(cidr, cidr) -> bool", _covers),
    "cidr_ip": ("ip(cidr) -> ip", lambda value: IP(value.address)),
    "cidr_masked": ("masked(cidr) -> cidr", _masked),
    "cidr_is_mask": ("isMask(cidr) -> bool", lambda value: value == _masked(value)),
    "cidr_prefix_length": ("prefixLength(cidr) -> int", lambda value: value.bits),
})  # fmt: skip
