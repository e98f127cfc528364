"""What a driver needs to run against a sandbox that it was not started by: the node's directories and the kubeconfig.

A sandbox leaves word of them in its own directory, which goes with it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import asdict

from dra_kit.sandbox.cluster import private
from dra_kit.sandbox.cluster.directory import running_directories
from dra_kit.sandbox.driver.node import SandboxNode
from dra_kit.sandbox.sandbox import Sandbox

_FILE: Final = "environment.json"


class RunningSandbox(Struct, frozen=True):
    """A sandbox that runs, in the foreground or in the background.

    Attributes:
        drivers: names of its drivers; none where it was started without one.
        kubeconfig: where it is.
        nodes: for each node the variables of a driver on it, by name.
    """

    drivers: tuple[str, ...]
    kubeconfig: str
    nodes: Mapping[str, Mapping[str, str]]

    @property
    def title(self) -> str:
        """Which one it is, for people."""
        return " and ".join(self.drivers) or "no driver"

    def has_kubeconfig(self, path: Path) -> bool:
        """Return whether it wrote the kubeconfig at a path."""
        return Path(self.kubeconfig).resolve() == path.resolve()


def leave_record(sandbox: Sandbox) -> None:
    """Let :func:`running_sandboxes` find this one."""
    kubeconfig = str(sandbox.kubeconfig.absolute())
    nodes = {node.name: _variables(node, kubeconfig) for node in sandbox.nodes}
    fields = RunningSandbox(tuple(sandbox.drivers), kubeconfig, nodes)
    private.replace(sandbox.directory / _FILE, json.dumps(asdict(fields)).encode())


def running_sandboxes() -> list[RunningSandbox]:
    """Return the sandboxes of this user that run and have left a record, oldest first."""
    found = (_read(directory / _FILE) for directory in running_directories())
    return [sandbox for sandbox in found if sandbox is not None]


def _variables(node: SandboxNode, kubeconfig: str) -> dict[str, str]:
    """Return variables by the names of Kubernetes' example driver and of ``dra-kit node``."""
    directory, cdi = str(node.directory), str(node.cdi_dir)
    return {
        "KUBECONFIG": kubeconfig,
        "NODE_NAME": node.name,
        "KUBELET_REGISTRAR_DIRECTORY_PATH": f"{directory}/plugins_registry",
        "KUBELET_PLUGINS_DIRECTORY_PATH": f"{directory}/plugins",
        "CDI_ROOT": cdi,
        "DRA_KUBECONFIG": kubeconfig,
        "DRA_NODE_NAME": node.name,
        "DRA_KUBELET_DIR": directory,
        "DRA_CDI_DIR": cdi,
    }


def _read(path: Path) -> RunningSandbox | None:
    """Return the record of a sandbox; None when it is of no sandbox."""
    try:
        fields: Any = json.loads(private.read(path) or b"")
        sandbox = RunningSandbox(**{**fields, "drivers": tuple(fields["drivers"])})
        texts = [*sandbox.drivers, sandbox.kubeconfig]
        for node, variables in sandbox.nodes.items():
            texts += [node, *variables, *variables.values()]
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return None
    return sandbox if all(isinstance(text, str) for text in texts) else None
