"""Whether container runtimes give containers what CDI files say: containerd from 2.0 by default, CRI-O from 1.28."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from dra_kit.operation.checks.finding import Finding, fail, ok, warn

CONTAINERD_CONFIG: Final = Path("/etc/containerd/config.toml")

_WHAT: Final = "CDI in the runtime"
_DEFAULT_DIRECTORIES: Final = ("/etc/cdi", "/var/run/cdi")
_ENABLED_SINCE: Final = {"containerd": (2, 0), "cri-o": (1, 28)}
_KNOWN_SINCE: Final = {"containerd": (1, 7), "cri-o": (1, 23)}
_SANDBOX: Final = "local-process://"
_PLUGINS: Final = ("io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri")


def runtime_findings(nodes: Iterable[Mapping[str, Any]]) -> list[Finding]:
    """Return the findings from the versions of the nodes' runtimes; one line for all that are well.

    Args:
        nodes: Node objects.
    """
    found: list[Finding] = []
    well: dict[str, int] = {}
    for node in nodes:
        name, version = node["metadata"]["name"], _version(node)
        kind, number = _parsed(version)
        if is_of_sandbox(node):
            well[version] = well.get(version, 0) + 1
        elif kind not in _ENABLED_SINCE:
            remedy = "look into its documentation whether CDI is on"
            found.append(warn(_WHAT, f"node {name} has {version or 'an unknown runtime'}", remedy))
        elif number < _KNOWN_SINCE[kind]:
            remedy = f"upgrade {kind}; without CDI containers get no device, and nobody says so"
            found.append(fail(_WHAT, f"node {name} has {version}, which knows no CDI", remedy))
        elif number < _ENABLED_SINCE[kind]:
            remedy = "set enable_cdi = true in its configuration (dra-kit check on the node looks), or upgrade"
            found.append(warn(_WHAT, f"node {name} has {version}, where CDI is off by default", remedy))
        else:
            well[version] = well.get(version, 0) + 1
    if well:
        found.append(ok(_WHAT, ", ".join(f"{count} x {version}" for version, count in sorted(well.items()))))
    return found


def is_of_sandbox(node: Mapping[str, Any]) -> bool:
    """Return whether it is a node of ``dra-kit sandbox``: its runtime knows CDI, its kubelet has no settings to read.

    Args:
        node: a Node object.
    """
    return _version(node).startswith(_SANDBOX)


def _version(node: Mapping[str, Any]) -> str:
    return str(node["status"]["nodeInfo"].get("containerRuntimeVersion", ""))


def containerd_findings(cdi_dir: Path, config: Path = CONTAINERD_CONFIG) -> Iterator[Finding]:
    """Yield findings from containerd's configuration on this node, where it can be read.

    Args:
        cdi_dir: where the driver writes its CDI files.
        config: of containerd; imports are not followed.
    """
    what = "containerd's configuration"
    try:
        parsed = tomllib.loads(config.read_text())
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:
        yield warn(what, f"{config} cannot be read: {error}", "look whether enable_cdi is true in it")
        return
    sections = [(parsed.get("plugins") or {}).get(name) or {} for name in _PLUGINS]
    switches = [section["enable_cdi"] for section in sections if "enable_cdi" in section]
    directories = next((section["cdi_spec_dirs"] for section in sections if "cdi_spec_dirs" in section), None)
    if False in switches:
        yield fail(what, f"{config} has enable_cdi = false", "set it to true and restart containerd")
    elif not _reads(cdi_dir, directories or _DEFAULT_DIRECTORIES):
        yield fail(
            what, f"cdi_spec_dirs of {config} is {directories or list(_DEFAULT_DIRECTORIES)}, without {cdi_dir}",
            "add it there, or give --cdi-dir one of those",
        )  # fmt: skip
    else:
        yield ok(what, f"{config} reads {cdi_dir}{'' if switches else ' (enable_cdi is not set)'}")


def _reads(cdi_dir: Path, directories: Sequence[str]) -> bool:
    return cdi_dir.resolve() in {Path(item).resolve() for item in directories}


def _parsed(version: str) -> tuple[str, tuple[int, int]]:
    match = re.match(r"(?P<kind>[a-z-]+)://v?(?P<major>\d+)\.(?P<minor>\d+)", version)
    return (match["kind"], (int(match["major"]), int(match["minor"]))) if match else ("", (0, 0))
