"""Starts what :mod:`tests.cluster.find` found, and takes down what it started, however the run ends."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import yaml

from tests.cluster import envtest
from tests.cluster.find import Found, missing_packages
from tests.cluster.manifests import listed


class PlaneError(Exception):
    """The cluster could not be started; the text is for people."""


@dataclass(frozen=True)
class Plane:
    """A Kubernetes that is up.

    Attributes:
        kubeconfig: of its admin.
        binaries: folder with kubectl, and with helm if there is one.
        directory: for files of the tests; it goes with the plane.
        node: name of the node; None when there is none.
        why: where it comes from, and why a node is missing.
        tool: the ``cluster`` tool and its state folder; None when the control plane was started without it.
    """

    kubeconfig: Path
    binaries: Path
    directory: Path
    node: str | None
    why: str
    tool: tuple[Path, Path] | None = None

    def kubectl(
        self, *arguments: str, stdin: str | None = None, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl as admin; its own words are in the error when it fails."""
        command = [str(self.binaries / "kubectl"), "--kubeconfig", str(self.kubeconfig), *arguments]
        result = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False, timeout=120)
        if check and result.returncode:
            raise PlaneError(f"kubectl {shlex.join(arguments)}: {result.stderr.strip()}")
        return result

    def get(self, *arguments: str) -> Any:
        """``kubectl get … -o json``, parsed."""
        return json.loads(self.kubectl("get", *arguments, "-o", "json").stdout)

    def versions(self, group: str) -> set[str]:
        """The versions of an API group that are served."""
        lines = self.kubectl("api-versions").stdout.splitlines()
        return {version for name, _, version in (line.partition("/") for line in lines) if name == group}

    def create(self, *items: object, namespace: str = "") -> None:
        """Create objects."""
        place = ("--namespace", namespace) if namespace else ()
        self.kubectl("create", *place, "-f", "-", stdin=listed(items))

    @contextmanager
    def holding(self, *items: object) -> Iterator[None]:
        """Create objects, and delete them in the end."""
        self.create(*items)
        try:
            yield
        finally:
            self.kubectl("delete", "-f", "-", stdin=listed(items))

    def has_event(self, pod: str, text: str) -> bool:
        """Whether the reason or the message of an Event of a pod has the text."""
        events = self.get("events", "--field-selector", f"involvedObject.name={pod}")["items"]
        return any(text in item["reason"] or text in item["message"] for item in events)

    def slices(self, driver: str) -> list[Any]:
        """The ResourceSlices of a driver."""
        items: list[Any] = self.get("resourceslices", "--field-selector", f"spec.driver={driver}")["items"]
        return items

    def delete_slices(self, driver: str) -> None:
        """Delete the ResourceSlices of a driver, sooner than the kubelet does."""
        self.kubectl("delete", "resourceslices", "--field-selector", f"spec.driver={driver}")

    def type_errors(self, policy: str) -> Any:
        """The errors of types that the API server finds in a ValidatingAdmissionPolicy; None before it has looked."""
        return self.get("validatingadmissionpolicy", policy).get("status", {}).get("typeChecking")

    def token_kubeconfig(self, name: str, token: str, path: Path) -> Path:
        """Write a kubeconfig of the holder of a token."""
        config: dict[str, Any] = yaml.safe_load(self.kubeconfig.read_text(encoding="utf-8"))
        cluster = config["clusters"][0]["name"]
        config |= {
            "users": [{"name": name, "user": {"token": token}}],
            "contexts": [{"name": name, "context": {"cluster": cluster, "user": name}}],
            "current-context": name,
        }
        path.touch(mode=0o600)
        path.write_text(json.dumps(config), encoding="utf-8")
        return path

    def component(self, action: Literal["stop", "start"], name: str, *, signal_name: str = "TERM") -> None:
        """Stop or start a component such as ``kubelet``; it has ended, or is a process, when this returns.

        Raises:
            PlaneError: nothing is known of it.
        """
        if self.tool is None:
            raise PlaneError(f"{self.why} has no tool that can {action} {name}")
        program, state = self.tool
        _run(program, "--dir", state, action, name, *(["--signal", signal_name] if action == "stop" else []))


@contextmanager
def start(found: Found, flags: Sequence[str] = ()) -> Iterator[Plane]:
    """The plane, for as long as the context lasts. SIGTERM ends it like Ctrl-C.

    Args:
        found: what to start.
        flags: further ones of the cluster tool's ``up``, such as ``--alpha``.

    Raises:
        PlaneError: it does not come up, or cannot have these flags.
    """
    if flags and (found.tool is None or found.running is not None):
        raise PlaneError(f"a cluster with {shlex.join(flags)} can be started by a cluster tool only; found {found.why}")
    former = signal.signal(signal.SIGTERM, _interrupt)
    # a short path: the node's sockets lie below it
    directory = Path(tempfile.mkdtemp(prefix="dra-kit-", dir="/tmp"))
    try:
        if found.tool is None:
            assert found.assets is not None
            with envtest.control_plane(found.assets, directory) as kubeconfig:
                yield Plane(kubeconfig, found.assets, directory, None, found.why)
        elif found.running is not None:
            environment = _environment(_run(found.tool, "--dir", found.running, "env"))
            yield _plane(environment, directory, found.why, (found.tool, found.running))
        else:
            with _own(found, directory, flags) as plane:
                yield plane
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        signal.signal(signal.SIGTERM, former)


@contextmanager
def _own(found: Found, directory: Path, flags: Sequence[str]) -> Iterator[Plane]:
    assert found.tool is not None
    state = directory / "cluster"
    if found.node:
        _refuse_second_node()
        remove_leftovers()
        _install_packages()
    try:
        output = _run(found.tool, "--dir", state, "up", *(["--node"] if found.node else []), *flags)
        yield _plane(_environment(output), directory, found.why, (found.tool, state))
    finally:
        # an interrupt while it goes down would leave half of it
        former = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            _run(found.tool, "--dir", state, "down")
        finally:
            signal.signal(signal.SIGINT, former)


def _plane(environment: Mapping[str, str], directory: Path, why: str, tool: tuple[Path, Path]) -> Plane:
    binaries = Path(environment["KUBEBUILDER_ASSETS"])
    plane = Plane(Path(environment["KUBECONFIG"]), binaries, directory, None, why, tool)
    nodes = [item["metadata"]["name"] for item in plane.get("nodes")["items"] if _ready(item)]
    return replace(plane, node=nodes[0] if nodes else None)


def _ready(node: Mapping[str, Any]) -> bool:
    conditions = node.get("status", {}).get("conditions", [])
    return any((item["type"], item["status"]) == ("Ready", "True") for item in conditions)


def _run(tool: Path, *arguments: object) -> str:
    # a session of its own: Ctrl-C in the terminal reaches this process, which then takes everything down
    command = [str(tool), *map(str, arguments)]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=400, start_new_session=True)
    if result.returncode:
        raise PlaneError(f"{shlex.join(command)}: {(result.stderr or result.stdout).strip()}")
    return result.stdout


def _environment(output: str) -> dict[str, str]:
    """The variables of a line ``export NAME=value …``."""
    words = shlex.split(output.strip().splitlines()[-1])
    return dict(word.split("=", 1) for word in words if "=" in word)


def _install_packages() -> None:
    packages = missing_packages()
    if packages and shutil.which("apt-get"):
        print(f"installing {', '.join(packages)}, which a node needs", file=sys.stderr, flush=True)
        for command in (["apt-get", "update", "-q"], ["apt-get", "install", "-y", "-q", *packages]):
            environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
            result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
            if result.returncode:
                raise PlaneError(f"{shlex.join(command)}: {result.stderr.strip()}")


def _refuse_second_node() -> None:
    for name in Path("/proc").glob("[0-9]*/comm"):
        try:
            if name.read_text().strip() == "kubelet":
                pid = name.parent.name
                raise PlaneError(
                    f"a kubelet runs on this machine already (process {pid}), and there can be one only; "
                    "take its cluster down, or name its state folder in DRA_KIT_CLUSTER_DIR to use it as it is"
                )
        except OSError:
            continue  # the process ended in the meantime


def remove_leftovers(directory: Path = Path("/var/lib/kubelet")) -> bool:
    """Remove the kubelet's directory if only drivers made something in it; return whether it was removed.

    A driver that outlives its cluster, because the tests were killed, makes its directories again, and the cluster tool
    refuses a kubelet's directory that is not its own. A kubelet leaves more than these.
    """
    entries = {entry.name for entry in directory.iterdir()} if directory.is_dir() else set()
    if not entries or not entries <= {"plugins", "plugins_registry"}:
        return False
    print(f"removing {directory}, in which a driver left {', '.join(sorted(entries))}", file=sys.stderr, flush=True)
    shutil.rmtree(directory)
    return True


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt(f"signal {number}")
