"""The bakery's node role as a process beside the real kubelet: it ends and comes back, always as the same pod."""

from __future__ import annotations

import asyncio
import json
import secrets
import signal
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from dra_kit.kubelet.plugin import Device, PluginClient
from dra_kit.plugin.sockets import plugin_socket
from dra_kit.resource.reference import ClaimReference
from tests.cluster.access import Access
from tests.cluster.node_driver import CDI_DIR
from tests.cluster.plane import Plane
from tests.cluster.processes import DRA_KIT, Running, running
from tests.crash.world import BAKERY, DRIVER

KUBELET_DIR = Path("/var/lib/kubelet")
STYLE = "full"
END_SECONDS = 60.0


class BakeryDriver:
    """One process at a time.

    Args:
        plane: where it runs.
        access: who it is.
        bakery: directory of its hardware and switches.

    Attributes:
        pod_uid: of its pod.
        kubeconfig: that is its account.
    """

    def __init__(self, plane: Plane, access: Access, bakery: Path) -> None:
        self.pod_uid = secrets.token_hex(8)
        self._plane = plane
        self._access = access
        self._environment = {"BAKERY": str(bakery), "BAKERY_STYLE": STYLE}
        self._logs = plane.directory / "bakery-logs"
        self._logs.mkdir()
        self._token = plane.directory / "bakery-token"
        self._running: Running | None = None
        self._past: list[Running] = []
        self._ending = ExitStack()
        self._dra_versions = ""
        self.kubeconfig = self.new_token()

    def new_token(self) -> Path:
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

    @property
    def process(self) -> Running:
        """What runs."""
        assert self._running is not None
        return self._running

    @property
    def alive(self) -> bool:
        """Whether it was started and not stopped."""
        return self._running is not None

    def start(self, *, registered: bool = True, dra_versions: str = "v1,v1beta1") -> None:
        """Start it, and wait until the kubelet has registered it."""
        assert self._running is None
        command = [
            DRA_KIT, "node", BAKERY, "--node-name", self._plane.node, "--kubeconfig", self.kubeconfig, "--cdi-dir",
            CDI_DIR, "--pod-uid", self.pod_uid, "--dra-versions", dra_versions,
        ]  # fmt: skip
        log = self._logs / f"{len(self._past)}.log"
        self._running = self._ending.enter_context(running(command, log=log, environment=self._environment))
        self._dra_versions = dra_versions
        if registered:
            self.registered_again(0)

    def stop(self, number: signal.Signals) -> None:
        """End it by a signal; it is gone when this returns."""
        ended = self.process
        ended.process.send_signal(number)
        code = ended.process.wait(timeout=END_SECONDS)
        self._running = None
        self._past.append(ended)
        assert code == (0 if number == signal.SIGTERM else -number), f"ended with {code}\n{ended.tail()}"

    def close(self) -> None:
        """End what runs."""
        self._ending.close()

    def registrations(self) -> int:
        """How often the kubelet has registered the process."""
        return sum(f"the kubelet registered driver {DRIVER}" in line for line in self.process.lines())

    def registered_again(self, before: int) -> None:
        """Wait until the kubelet has registered it more often than that."""
        self.process.wait_until("the kubelet to register the driver", lambda: self.registrations() > before)

    def ask(self, reference: ClaimReference) -> Sequence[Device]:
        """Its answer to one more prepare of a claim that is prepared."""
        service = f"{self._dra_versions.partition(',')[0]}.DRAPlugin"

        async def ask() -> Sequence[Device]:
            client = PluginClient(str(plugin_socket(KUBELET_DIR, DRIVER, self.pod_uid)), service)
            try:
                answer = (await client.prepare([reference]))[reference.uid]
            finally:
                await client.close()
            assert not answer.error, answer.error
            return answer.devices

        return asyncio.run(ask())

    def problems(self) -> list[str]:
        """Processes of the driver beside the one that is meant to run."""
        mine = {self._running.process.pid} if self._running is not None else set()
        found = {pid for pid, command in _commands() if str(BAKERY) in command and self.pod_uid in command}
        return [] if found == mine else [f"processes {sorted(found)} run, and not {sorted(mine)}"]

    def tracebacks(self) -> list[Path]:
        """Logs with a traceback in them."""
        known = [*self._past, *([self._running] if self._running else [])]
        return [one.log for one in known if any("Traceback" in line for line in one.lines())]


def _commands() -> Iterator[tuple[int, str]]:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            text = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # it ended in the meantime
        if text:  # a process that has ended and was not waited for has none
            yield int(path.parent.name), text
