"""A node from inside: the kubelet's directories, the sockets of drivers, and where CDI files are."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from dra_kit.kubelet.sockets import is_listening
from dra_kit.operation.checks.finding import Finding, fail, ok, warn

_ROOT_FLAG: Final = "--root-dir"


def node_findings(kubelet_dir: Path, cdi_dir: Path, driver: str | None = None) -> Iterator[Finding]:
    """Yield the findings about this node.

    Args:
        kubelet_dir: the kubelet's root directory.
        cdi_dir: where drivers write their CDI files.
        driver: whose sockets; None for those of all.
    """
    yield from kubelet_root_findings(kubelet_dir)
    yield from _sockets(kubelet_dir, driver)
    yield _cdi(cdi_dir)


def kubelet_root_findings(kubelet_dir: Path, processes: Path = Path("/proc")) -> Iterator[Finding]:
    """Yield whether this is the root directory of the kubelet that runs here.

    Args:
        kubelet_dir: the one that drivers are configured with.
        processes: the file system that shows processes; in a pod it has those of the pod alone.
    """
    what, registry = "kubelet root", kubelet_dir / "plugins_registry"
    root = next(_root_dirs(processes), None)
    if root is not None and root.resolve() != kubelet_dir.resolve():
        yield fail(what, f"the kubelet's {_ROOT_FLAG} is {root}, not {kubelet_dir}", "give it as --kubelet-dir")
    elif not kubelet_dir.is_dir():
        yield fail(what, f"{kubelet_dir} is not here", "give the kubelet's root directory as --kubelet-dir")
    elif not registry.is_dir():
        yield fail(what, f"{registry} is not here", "no kubelet has used this directory; correct --kubelet-dir")
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


def _sockets(kubelet_dir: Path, driver: str | None) -> Iterator[Finding]:
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
            yield warn(what, f"nobody listens at {path}", "a driver was killed; its next start removes it")
        else:
            yield warn(what, f"{path} cannot be opened", "run as root")


def _cdi(cdi_dir: Path) -> Finding:
    what = "CDI directory"
    if not cdi_dir.is_dir():
        return warn(what, f"{cdi_dir} is not here", "a driver makes it; else correct --cdi-dir")
    if not os.access(cdi_dir, os.W_OK | os.X_OK):
        return fail(what, f"{cdi_dir} cannot be written", "run as root; in a pod, mount it writable")
    return ok(what, f"{cdi_dir} with {len(list(cdi_dir.glob('*.json')))} files")
