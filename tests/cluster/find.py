"""Finds a real Kubernetes: a ``cluster`` tool that starts everything, or the binaries of a control plane."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
LAST_PLACE = REPOSITORY.parent / "shared" / "cluster" / "cluster"
CONTROL_PLANE = ("etcd", "kube-apiserver", "kubectl")
NODE_TOOLS = {"ip": "iproute2", "iptables": "iptables", "conntrack": "conntrack"}


class NotFound(Exception):
    """No Kubernetes was found; the message lists what was looked for."""


@dataclass(frozen=True)
class Found:
    """What the tests can start.

    Attributes:
        tool: a ``cluster`` tool; None when there are only binaries.
        assets: folder with the binaries of a control plane; None when there is a tool.
        running: state folder of a cluster that is up already and is used as it is.
        node: whether a node can be started too.
        why: what was found where, and why a node is missing.
    """

    tool: Path | None
    assets: Path | None
    running: Path | None
    node: bool
    why: str


def find(environment: Mapping[str, str] = os.environ, last_place: Path = LAST_PLACE) -> Found:
    """``DRA_KIT_CLUSTER``, the last default place, ``KUBEBUILDER_ASSETS``: the first that is there.

    ``DRA_KIT_CLUSTER_DIR`` names the state folder of a cluster that the tool started before: it is used and left up.

    Raises:
        NotFound: nothing is there, or what is named is not.
    """
    named = environment.get("DRA_KIT_CLUSTER")
    if named and not os.access(named, os.X_OK):
        raise NotFound(f"DRA_KIT_CLUSTER is {named}, which is not an executable file")
    tool = Path(named) if named else last_place if os.access(last_place, os.X_OK) else None
    if tool is not None:
        running = environment.get("DRA_KIT_CLUSTER_DIR")
        node = running is not None or os.geteuid() == 0
        why = f"the cluster tool {tool}" + ("" if node else "; a node needs root")
        return Found(tool.resolve(), None, Path(running) if running else None, node, why)
    assets = environment.get("KUBEBUILDER_ASSETS")
    if not assets:
        raise NotFound(
            "no Kubernetes to test with: DRA_KIT_CLUSTER (path of a cluster tool) and KUBEBUILDER_ASSETS (folder with "
            f"{', '.join(CONTROL_PLANE)}) are not set, and there is no {last_place}"
        )
    missing = [name for name in CONTROL_PLANE if not os.access(Path(assets, name), os.X_OK)]
    if missing:
        raise NotFound(f"KUBEBUILDER_ASSETS is {assets}, but {', '.join(missing)} is not in it")
    why = f"the control plane in {assets}; it has no node, DRA_KIT_CLUSTER would"
    return Found(None, Path(assets).resolve(), None, False, why)


def lacks_release(tool: Path, release: str) -> str:
    """Why a ``cluster`` tool cannot start a release; empty if it can."""
    assets = [str(tool), "assets", "--release", release]
    result = subprocess.run(assets, capture_output=True, text=True, check=False)
    return f"{shlex.join(assets)}: {(result.stderr or result.stdout).strip()}" if result.returncode else ""


def missing_packages() -> list[str]:
    """Debian packages that a node needs and this machine lacks."""
    return [package for command, package in NODE_TOOLS.items() if not shutil.which(command)]
