"""Checks of a node: the kubelet's directories, sockets, CDI files and container runtime."""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import grpc.aio
from msgspec import Struct

from dra_kit.diagnosis.cluster_checks import CheckResult, fail, ok, version_counts, warn
from dra_kit.errors import Unavailable
from dra_kit.kubelet.cdi.resolution import DEFAULT_DIRECTORIES
from dra_kit.kubelet.proto import cri_v1_pb2 as pb
from dra_kit.kubelet.proto import cri_v1_pb2_grpc as pb_grpc
from dra_kit.kubelet.sockets import is_listening

_RUNTIME_CHECK: Final = "container runtime"
_WITHOUT_CDI: Final = "without CDI containers get no device, and no error is reported"


async def check_runtime(socket: Path | None, cdi_dir: Path) -> list[CheckResult]:
    """Ask the container runtime whether it reads CDI files, and from where."""
    path = socket or next((path for path in RUNTIME_SOCKETS if path.is_socket()), None)
    if path is None:
        return []
    try:
        info = await runtime_info(path)
    except Unavailable as error:
        return [warn(_RUNTIME_CHECK, str(error), "run as root on the node, or set --cri-socket")]
    return list(info_findings(info, cdi_dir))


def info_findings(info: RuntimeInfo, cdi_dir: Path) -> Iterator[CheckResult]:
    """Check a runtime's own answer; a runtime that reports nothing about CDI is judged by its release."""
    config = info.config
    enabled, directories = config.get("enableCDI"), config.get("cdiSpecDirs")
    if enabled is False:
        remedy = f"set enable_cdi = true in its configuration and restart it: {_WITHOUT_CDI}"
        yield fail(_RUNTIME_CHECK, f"{info.name} has CDI off", remedy)
    elif directories and not _reads(cdi_dir, directories):
        text = f"{info.name} reads CDI files in {', '.join(map(str, directories))}, not in {cdi_dir}"
        yield fail(_RUNTIME_CHECK, text, "add it to cdi_spec_dirs, or set --cdi-dir to one of them")
    elif enabled or directories:
        yield ok(_RUNTIME_CHECK, f"{info.name} reads CDI files in {cdi_dir}")
    else:
        yield ok(_RUNTIME_CHECK, f"{info.name} answers, but does not report whether CDI is on; see its release")


NRI_SOCKET: Final = Path("/var/run/nri/nri.sock")
"""Where containerd and CRI-O listen for NRI by default."""


def nri_finding(socket: Path) -> CheckResult:
    """Check that the container runtime serves NRI, which drivers with pod hooks need."""
    answered = is_listening(socket)
    if answered:
        return ok("NRI", f"{socket} answers")
    if answered is None and socket.exists():
        return warn("NRI", f"{socket} cannot be opened", "run as root")
    return fail(
        "NRI",
        f"no container runtime listens at {socket}, so the driver's pod hooks cannot run and no container with its "
        "devices starts",
        "switch NRI on and restart the runtime: containerd (on by default since 2.0) disable = false in the section "
        "plugins.'io.containerd.nri.v1.nri' of its configuration, CRI-O (on by default) enable_nri = true in crio.nri; "
        "in a pod, mount the socket's directory (chart value node.nriSocket)",
    )


_ROOT_FLAG: Final = "--root-dir"


def node_findings(kubelet_dir: Path, cdi_dir: Path, driver: str | None = None) -> Iterator[CheckResult]:
    """Check this node, for one driver or (None) all."""
    yield from kubelet_root_findings(kubelet_dir)
    yield from _sockets(kubelet_dir, driver)
    yield _cdi(cdi_dir)


def kubelet_root_findings(kubelet_dir: Path, processes: Path = Path("/proc")) -> Iterator[CheckResult]:
    """Check that this is the root directory of the running kubelet, as far as ``processes`` shows it."""
    what, registry = "kubelet root", kubelet_dir / "plugins_registry"
    root = next(_root_dirs(processes), None)
    if root is not None and root.resolve() != kubelet_dir.resolve():
        yield fail(what, f"the kubelet's {_ROOT_FLAG} is {root}, not {kubelet_dir}", "set --kubelet-dir to it")
    elif not kubelet_dir.is_dir():
        yield fail(what, f"{kubelet_dir} does not exist", "set --kubelet-dir to the kubelet's root directory")
    elif not registry.is_dir():
        yield fail(what, f"{registry} does not exist", "no kubelet has used this directory; correct --kubelet-dir")
    elif not os.access(registry, os.W_OK | os.X_OK):
        yield fail(what, f"{registry} cannot be written", "run as root; in a pod, mount it writable")
    else:
        yield ok(what, str(kubelet_dir))


def _root_dirs(processes: Path) -> Iterator[Path]:
    for file in processes.glob("[0-9]*/cmdline"):
        words: Sequence[str] = ()
        with suppress(OSError):
            words = file.read_bytes().decode(errors="replace").split("\0")
        if not words or not any(Path(word).name == "kubelet" for word in words[:2]):
            continue
        for number, word in enumerate(words):
            if word == _ROOT_FLAG and number + 1 < len(words):
                yield Path(words[number + 1])
            elif word.startswith(f"{_ROOT_FLAG}="):
                yield Path(word.partition("=")[2])


def _sockets(kubelet_dir: Path, driver: str | None) -> Iterator[CheckResult]:
    what, plugins = "sockets", kubelet_dir / "plugins"
    pattern = f"{driver}/dra*.sock" if driver else "*/dra*.sock"
    services = sorted(plugins.glob(pattern)) if plugins.is_dir() else []
    if not services:
        whose = f"driver {driver} has" if driver else "no driver has"
        make = fail if driver else warn
        yield make(what, f"{whose} {'no ' if driver else 'a '}socket below {plugins}", "is it running on this node?")
    for path in services:
        answered = is_listening(path)
        if answered:
            yield ok(what, f"{path} answers")
        elif answered is False:
            yield warn(what, f"no process listens at {path}", "a driver was killed; its next start removes it")
        else:
            yield warn(what, f"{path} cannot be opened", "run as root")


def _cdi(cdi_dir: Path) -> CheckResult:
    what = "CDI directory"
    if not cdi_dir.is_dir():
        return warn(what, f"{cdi_dir} does not exist", "a driver creates it; otherwise, correct --cdi-dir")
    if not os.access(cdi_dir, os.W_OK | os.X_OK):
        return fail(what, f"{cdi_dir} cannot be written", "run as root; in a pod, mount it writable")
    return ok(what, f"{cdi_dir} with {len(list(cdi_dir.glob('*.json')))} files")


CONTAINERD_CONFIG: Final = Path("/etc/containerd/config.toml")
_CDI_CHECK: Final = "CDI in the runtime"
_ENABLED_SINCE: Final = {"containerd": (2, 0), "cri-o": (1, 28)}
_KNOWN_SINCE: Final = {"containerd": (1, 7), "cri-o": (1, 23)}
_PLUGINS: Final = ("io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri")


def runtime_findings(nodes: Iterable[Mapping[str, Any]]) -> list[CheckResult]:
    """Check the runtime versions of Node objects; return one line for all that support CDI."""
    found: list[CheckResult] = []
    supported: Counter[str] = Counter()
    for node in nodes:
        name, version = node["metadata"]["name"], _version(node)
        kind, number = _parsed(version)
        if is_of_sandbox(node):
            supported[version] += 1
        elif kind not in _ENABLED_SINCE:
            remedy = "see its documentation whether CDI is on"
            found.append(warn(_CDI_CHECK, f"node {name} has {version or 'an unknown runtime'}", remedy))
        elif number < _KNOWN_SINCE[kind]:
            remedy = f"upgrade {kind}; {_WITHOUT_CDI}"
            found.append(fail(_CDI_CHECK, f"node {name} has {version}, which does not support CDI", remedy))
        elif number < _ENABLED_SINCE[kind]:
            remedy = "set enable_cdi = true in its configuration (dra-kit check on the node reads it), or upgrade"
            found.append(warn(_CDI_CHECK, f"node {name} has {version}, where CDI is off by default", remedy))
        else:
            supported[version] += 1
    return [*found, *version_counts(_CDI_CHECK, supported)]


def is_of_sandbox(node: Mapping[str, Any]) -> bool:
    """Return whether a node is simulated by ``dra-kit sandbox``, whose kubelet has no configuration to read."""
    return _version(node).startswith("local-process://")


def _version(node: Mapping[str, Any]) -> str:
    return str(node["status"]["nodeInfo"].get("containerRuntimeVersion", ""))


def containerd_findings(cdi_dir: Path, config: Path = CONTAINERD_CONFIG) -> Iterator[CheckResult]:
    """Check containerd's configuration file, without its imports, if it can be read."""
    what = "containerd's configuration"
    try:
        parsed = tomllib.loads(config.read_text())
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:
        yield warn(what, f"{config} cannot be read: {error}", "check that enable_cdi is true in it")
        return
    sections = [(parsed.get("plugins") or {}).get(name) or {} for name in _PLUGINS]
    switches = [section["enable_cdi"] for section in sections if "enable_cdi" in section]
    directories = next((section["cdi_spec_dirs"] for section in sections if "cdi_spec_dirs" in section), None)
    if False in switches:
        yield fail(what, f"{config} has enable_cdi = false", "set it to true and restart containerd")
    elif not _reads(cdi_dir, directories := directories or DEFAULT_DIRECTORIES):
        text = f"cdi_spec_dirs of {config} is {', '.join(map(str, directories))}, without {cdi_dir}"
        yield fail(what, text, "add it there, or set --cdi-dir to one of them")
    else:
        yield ok(what, f"{config} reads {cdi_dir}{'' if switches else ' (enable_cdi is not set)'}")


def _reads(cdi_dir: Path, directories: Sequence[object]) -> bool:
    return cdi_dir.resolve() in {Path(str(item)).resolve() for item in directories}


def _parsed(version: str) -> tuple[str, tuple[int, int]]:
    match = re.match(r"(?P<kind>[a-z-]+)://v?(?P<major>\d+)\.(?P<minor>\d+)", version)
    return (match["kind"], (int(match["major"]), int(match["minor"]))) if match else ("", (0, 0))


RUNTIME_SOCKETS: Final = tuple(
    map(Path, ("/run/containerd/containerd.sock", "/run/crio/crio.sock", "/run/k3s/containerd/containerd.sock"))
)
"""Where runtimes listen by default: containerd, CRI-O, k3s and RKE2."""
_ANSWER_SECONDS: Final = 5.0


class RuntimeInfo(Struct, frozen=True):
    """What a runtime reports about itself.

    Attributes:
        name: such as ``containerd 2.4.2``.
    """

    name: str
    config: Mapping[str, Any]


async def runtime_info(socket: Path) -> RuntimeInfo:
    """Query a runtime (CRI ``Version`` and verbose ``Status``; containerd reports its configuration, CRI-O does not).

    Raises:
        Unavailable: it does not respond.
    """
    try:
        async with grpc.aio.insecure_channel(f"unix:{quote(str(socket))}") as channel:
            runtime = pb_grpc.RuntimeServiceStub(channel)
            version = await runtime.Version(pb.VersionRequest(), timeout=_ANSWER_SECONDS)
            status = await runtime.Status(pb.StatusRequest(verbose=True), timeout=_ANSWER_SECONDS)
    except grpc.aio.AioRpcError as error:
        raise Unavailable(
            f"the container runtime at {socket} does not report its configuration ({error.code().name})",
            code="no-answer",
        ) from error
    name = f"{version.runtime_name} {version.runtime_version.removeprefix('v')}"
    return RuntimeInfo(name.strip() or "the runtime", _config(status.info))


def _config(info: Mapping[str, str]) -> Mapping[str, Any]:
    try:
        config = json.loads(info.get("config") or "{}")
    except ValueError:
        return {}
    return config if isinstance(config, Mapping) else {}
