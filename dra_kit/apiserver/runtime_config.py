"""Which versions of built-in kinds are served: ``--runtime-config`` of kube-apiserver.

Source: k8s.io/apiserver 0.37 ``pkg/server/resourceconfig`` and ``pkg/server/options/api_enablement.go``; defaults and
messages measured on kube-apiserver 1.37.1.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from dra_kit.apiserver.api import KINDS
from dra_kit.apiserver.kinds.kind import Kind
from dra_kit.kubernetes.resource.field_errors import go_quote

_MATCHERS: Final = {
    "api/all": re.compile(r".*"),
    "api/ga": re.compile(r"v\d+"),
    "api/beta": re.compile(r"v\d+beta\d+"),
    "api/alpha": re.compile(r"v\d+alpha\d+"),
}
"""The versions of all groups that a key stands for; a later key takes precedence."""
_BOOLEANS: Final = {
    **dict.fromkeys(("1", "t", "T", "true", "TRUE", "True", ""), True),
    **dict.fromkeys(("0", "f", "F", "false", "FALSE", "False"), False),
}  # fmt: skip


class RuntimeConfig(Struct, frozen=True):
    """Which versions are switched on or off.

    Attributes:
        matching: by ``api/all``, ``api/ga``, ``api/beta`` and ``api/alpha``.
        explicit: by ``<group>/<version>`` and ``<group>/<version>/<plural>``.
    """

    matching: Mapping[str, bool] = field(default_factory=dict)
    explicit: Mapping[str, bool] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> RuntimeConfig:
        """Read ``KEY=BOOL`` pairs that are separated by commas; a key alone is true.

        Raises:
            ValueError: a key or value is not valid, or no kind has the version.
        """
        given = {}
        for pair in filter(None, text.split(",")):
            key, _, value = pair.partition("=")
            given[key.strip()] = value.strip()
        if given == {"api/all": "false"}:
            raise ValueError("invalid runtime-config with only api/all=false")
        known = {f"{kind.group}/{version}" for kind in KINDS for version in kind.types}
        matching, explicit = {}, {}
        for key, value in given.items():
            if key in _MATCHERS:
                if value not in {"true", "false"}:
                    raise ValueError(f"invalid value {key}={value}")
                matching[key] = value == "true"
            else:
                explicit[key] = _boolean(key, value, known)
        return cls(matching, explicit)

    def serves(self, kind: Kind, version: str) -> bool:
        """Return whether a version of a kind is served."""
        is_served = version not in kind.off_by_default
        for key, pattern in _MATCHERS.items():
            if key in self.matching and pattern.fullmatch(version):
                is_served = self.matching[key]
        is_served = self.explicit.get(f"{kind.group}/{version}", is_served)
        return self.explicit.get(f"{kind.group}/{version}/{kind.plural}", is_served)

    def served(self) -> Iterator[Kind]:
        """Yield the built-in kinds with their served versions only; without any, they are not in the API."""
        for kind in KINDS:
            types = {version: name for version, name in kind.types.items() if self.serves(kind, version)}
            if types:
                yield replace(kind, types=types, storage=kind.storage_api_version, storage_type=kind.stored_type)

    def switched_off(self) -> list[str]:
        """Return ``<group>/<version>`` of built-in kinds that would be served by default, without a feature gate."""
        return sorted({
            f"{kind.group}/{version}" if kind.group else version
            for kind in KINDS
            for version in kind.types
            if not kind.gate and version not in kind.off_by_default and not self.serves(kind, version)
        })  # fmt: skip


ALL_VERSIONS: Final = RuntimeConfig({"api/all": True})
"""Everything is served that the server knows."""


def _boolean(key: str, value: str, known: set[str]) -> bool:
    group, slash, rest = key.partition("/")
    version, _, plural = rest.partition("/")
    if not slash or "/" in plural:
        raise ValueError(f"runtime-config invalid key {key}")
    if not any(name.startswith(f"{group}/") for name in known):
        raise ValueError(f"unknown api groups {group}/{version}")
    if f"{group}/{version}" not in known:
        raise ValueError(f"group version {group}/{version} that has not been registered")
    if value not in _BOOLEANS:
        cause = f"strconv.ParseBool: parsing {go_quote(value)}: invalid syntax"
        raise ValueError(f"invalid value of {key}: {value}, err: {cause}")
    if plural != plural.lower():
        detail = f"group/version/resource and resource is always lowercase plural, not {go_quote(plural)}"
        raise ValueError(f"invalid key {key}: {detail}")
    return _BOOLEANS[value]
