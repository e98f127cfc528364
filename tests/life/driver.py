"""The bakery's node role as a process beside the kubelet: it is restarted, always as the same pod."""

from __future__ import annotations

import asyncio
import secrets
import signal
from collections.abc import Mapping, Sequence

from dra_kit.kubelet.plugin_client import ClaimAnswer, PluginClient
from dra_kit.kubelet.sockets import plugin_socket
from dra_kit.kubernetes.resource.objects import ClaimReference
from tests.crash.world import BAKERY, DRIVER
from tests.life.cluster import Cluster, Process
from tests.life.switches import until

STYLE = "full"
_TAIL = 30


class BakeryDriver:
    """One process at a time.

    Args:
        cluster: where it runs.
        bakery: directory of its hardware and switches.

    Attributes:
        pod_uid: of its pod.
    """

    def __init__(self, cluster: Cluster, bakery: str) -> None:
        self.pod_uid = secrets.token_hex(8)
        self._cluster = cluster
        self._environment = {"BAKERY": bakery, "BAKERY_STYLE": STYLE}
        self._process: Process | None = None
        self._past: list[Process] = []
        self._dra_versions = ""

    @property
    def alive(self) -> bool:
        """Whether it was started and not stopped."""
        return self._process is not None

    def start(self, *, registered: bool = True, dra_versions: str = "v1,v1beta1") -> None:
        """Start it, and wait until the kubelet has registered it."""
        assert self._process is None
        arguments = [str(BAKERY), "--dra-versions", dra_versions]
        self._process = self._cluster.start_driver(arguments, self._environment, self.pod_uid)
        self._dra_versions = dra_versions
        if registered:
            self.registered_again(0)

    def send(self, number: signal.Signals) -> None:
        """Send it a signal, and do not wait."""
        self._running.send(number)

    def stop(self, number: signal.Signals) -> None:
        """End it by a signal; it is gone when this returns."""
        ended = self._running
        ended.send(number)
        ended.join()
        self._process = None
        self._past.append(ended)
        wanted = 0 if number == signal.SIGTERM else -number
        assert ended.exit_code == wanted, f"ended with {ended.exit_code}\n{_tail(ended)}"

    def close(self) -> None:
        """End what runs."""
        for process in (*self._past, *([self._process] if self._process else [])):
            process.close()

    def registrations(self) -> int:
        """How often the kubelet has registered the process."""
        return sum(f"the kubelet registered driver {DRIVER}" in line for line in self._running.log().splitlines())

    def registered_again(self, before: int) -> None:
        """Wait until the kubelet has registered it more often than that."""

        def registered() -> bool:
            assert self._running.alive, f"the driver ended with {self._running.exit_code}\n{self.tail()}"
            return self.registrations() > before

        until("the kubelet to register the driver", registered, self.tail)

    def ask(self, references: Sequence[ClaimReference]) -> Mapping[str, ClaimAnswer]:
        """Its answers, by UID, to one more prepare of claims that are prepared."""
        service = f"{self._dra_versions.partition(',')[0]}.DRAPlugin"

        async def ask() -> Mapping[str, ClaimAnswer]:
            client = PluginClient(str(plugin_socket(self._cluster.kubelet_dir, DRIVER, self.pod_uid)), service)
            try:
                return await client.prepare(references)
            finally:
                await client.close()

        return asyncio.run(ask())

    def tail(self) -> str:
        """The last lines of its log."""
        return _tail(self._process) if self._process is not None else "the driver does not run"

    def problems(self) -> list[str]:
        """Processes of the driver beside the one that is meant to run."""
        found = len(self._cluster.driver_processes(self.pod_uid))
        return [] if found == int(self.alive) else [f"{found} processes of the driver run, and not {int(self.alive)}"]

    def tracebacks(self) -> list[str]:
        """Logs with a traceback in them."""
        known = [*self._past, *([self._process] if self._process else [])]
        return [text for process in known if "Traceback" in (text := process.log())]

    @property
    def _running(self) -> Process:
        assert self._process is not None
        return self._process


def _tail(process: Process) -> str:
    return "\n".join(process.log().splitlines()[-_TAIL:])
