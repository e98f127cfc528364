"""A real Kubernetes as the node's life needs it: its cluster tool ends and starts the parts, kubectl does the rest."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.cluster.access import Access, granted
from tests.cluster.life.writes import FlowWrites
from tests.cluster.node_driver import CDI_DIR
from tests.cluster.plane import Plane
from tests.cluster.processes import DRA_KIT, Running, running
from tests.crash.world import BAKERY, DRIVER
from tests.life.cluster import Pace
from tests.life.switches import until
from tests.support.processes import processes

END_SECONDS = 60.0
_EVENTS = "events.v1.events.k8s.io"


class PlaneProcess:
    """See :class:`tests.life.cluster.Process`."""

    def __init__(self, started: Running, ending: ExitStack) -> None:
        self._started = started
        self._ending = ending

    @property
    def alive(self) -> bool:
        return self.exit_code is None

    @property
    def exit_code(self) -> int | None:
        return self._started.process.poll()

    def send(self, number: signal.Signals) -> None:
        self._started.process.send_signal(number)

    def join(self) -> None:
        self._started.process.wait(timeout=END_SECONDS)

    def log(self) -> str:
        return "\n".join(self._started.lines())

    def close(self) -> None:
        self._ending.close()


class PlaneCluster:
    """See :class:`tests.life.cluster.Cluster`.

    Args:
        plane: the cluster.
        access: who the driver is.
    """

    kubelet_dir = Path("/var/lib/kubelet")
    cdi_dir = CDI_DIR
    pace = Pace()

    def __init__(self, plane: Plane, access: Access) -> None:
        assert plane.node is not None
        self.plane = plane
        self.node = plane.node
        self.directory = plane.directory
        self.writes = FlowWrites(plane)
        self._access = access
        self._logs = plane.directory / "bakery-logs"
        self._logs.mkdir()
        self._starts = 0
        self._token = plane.directory / "bakery-token"
        self._labels: dict[str, str] = {}
        self.kubeconfig = self._new_token()

    @classmethod
    @contextmanager
    def open(cls, plane: Plane) -> Iterator[PlaneCluster]:
        """The cluster, which counts what the driver's account writes for as long as the context lasts."""
        with granted(plane, release="dra-bakery", driver=DRIVER) as access:
            cluster = cls(plane, access)
            account = {"namespace": access.namespace, "account": f"{access.release}-node"}
            with FlowWrites.of(plane, **account, kubeconfig=cluster.kubeconfig) as cluster.writes:
                yield cluster

    # -- its parts

    def start_driver(self, arguments: Sequence[str], environment: Mapping[str, str], pod_uid: str) -> PlaneProcess:
        command = [
            DRA_KIT, "node", *arguments, "--node-name", self.node, "--kubeconfig", self.kubeconfig, "--cdi-dir",
            CDI_DIR, "--pod-uid", pod_uid, "--orphan-after", "60",
        ]  # fmt: skip
        log = self._logs / f"{self._starts}.log"
        self._starts += 1
        ending = ExitStack()
        return PlaneProcess(ending.enter_context(running(command, log=log, environment=environment)), ending)

    def driver_processes(self, pod_uid: str) -> list[int]:
        return [
            process.pid
            for process in processes()
            if str(BAKERY) in process.command_line and pod_uid in process.command_line
        ]

    def stop_kubelet(self, number: signal.Signals) -> None:
        self.plane.component("stop", "kubelet", signal_name=number.name.removeprefix("SIG"))

    def start_kubelet(self) -> None:
        self.plane.component("start", "kubelet")

    def stop_api_server(self) -> None:
        self.plane.component("stop", "kube-apiserver")

    def start_api_server(self) -> None:
        if self._ready():
            return
        self.plane.component("start", "kube-apiserver")
        until("the API server", self._ready)
        self.writes.restarted()

    def delete_node(self) -> None:
        self._labels = self.plane.get("node", self.node)["metadata"]["labels"]
        self.plane.kubectl("delete", "node", self.node)

    def furnish_node(self) -> None:
        labels = [f"{key}={value}" for key, value in self._labels.items()]
        self.plane.kubectl("label", "node", self.node, "--overwrite", *labels)
        self._new_token()

    # -- its objects

    def create(self, items: Sequence[Mapping[str, Any]]) -> None:
        self.plane.create(*items)

    def delete(self, kind: str, names: Sequence[str], namespace: str = "", *, force: bool = False) -> None:
        if names:
            flags = [*_in(namespace), *(["--force", "--grace-period=0"] if force else [])]
            self.plane.kubectl("delete", kind, *names, "--wait=false", "--ignore-not-found", *flags)

    def objects(self, kind: str, namespace: str = "", *, selector: str = "") -> list[dict[str, Any]]:
        flags = [*_in(namespace), *(["--field-selector", selector] if selector else [])]
        items: list[dict[str, Any]] = self.plane.get(_EVENTS if kind == "event" else kind, *flags)["items"]
        return items

    def output(self, namespace: str, pod: str) -> list[str]:
        return self.plane.kubectl("logs", pod, *_in(namespace), check=False).stdout.splitlines()

    def end_container(self, namespace: str, pod: str) -> None:
        killed = self.plane.kubectl("exec", pod, *_in(namespace), "--", "kill", "1", check=False)
        # 137: kill itself ended with the container
        assert killed.returncode in {0, 137}, killed.stderr

    # --

    def _ready(self) -> bool:
        return not self.plane.kubectl("get", "--raw", "/readyz", check=False).returncode

    def _new_token(self) -> Path:
        """A fresh token in the file that the kubeconfig names, as the kubelet keeps that of a pod fresh."""
        path = self._access.kubeconfig("node")
        config = json.loads(path.read_text())
        [user] = config["users"]
        fresh = self._token.with_suffix(".new")
        fresh.touch(mode=0o600)
        fresh.write_text(user["user"]["token"])
        fresh.replace(self._token)
        user["user"] = {"tokenFile": str(self._token)}
        path.write_text(json.dumps(config))
        return path


def _in(namespace: str) -> list[str]:
    return ["--namespace", namespace] if namespace else []
