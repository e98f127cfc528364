"""A real cluster in which the driver is deployed."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from dra_kit.client.api import Client
from dra_kit.client.credentials import load_credentials
from dra_kit.errors import ConfigurationError, KubeError


class RemoteDriverControl:
    """Control a driver whose processes are on nodes of a real cluster, as stories and tests ask for it."""

    awaited = ""

    def __init__(self, driver: str) -> None:
        self._driver = driver

    async def restart(self) -> None:
        """Refuse."""
        raise self._refused("restarted", "kubectl rollout restart")

    async def in_process(self, wanted: bool, /) -> None:
        """Refuse: it is a process, but none that can be killed from here."""
        if wanted:
            raise self._refused("killed", "kill -9 on its node")

    async def kill(self) -> None:
        """Refuse."""
        raise self._refused("killed", "kill -9 on its node")

    async def start(self) -> None:
        """Do nothing: it runs."""

    async def kill_after(self, step: str) -> None:
        """Refuse."""
        del step
        raise self._refused("killed", "kill -9 on its node")

    async def upgrade(self, target: object, /) -> None:
        """Refuse."""
        del target
        raise self._refused("upgraded", "helm upgrade")

    async def rollback(self) -> None:
        """Refuse."""
        raise self._refused("rolled back", "helm rollback")

    async def reboot(self, lost: Sequence[str] = ()) -> None:
        """Refuse."""
        del lost
        raise self._refused("ended by a reboot", "systemctl reboot on its node")

    async def restore(self) -> None:
        """Do nothing: it is unchanged."""

    async def files(self, place: str) -> Sequence[str] | None:
        """Return nothing: a node cannot be looked into from outside."""
        del place
        return None

    async def replace_file(self, setting: str, text: str) -> str:
        """Refuse.

        Raises:
            ConfigurationError: the driver's files are on its nodes.
        """
        del text
        raise ConfigurationError(
            f"the file of the driver's setting {setting!r} is on a node of a real cluster; run this in the sandbox"
        )

    async def inject_health(self, device: str, reason: str, message: str | None) -> None:
        """Refuse.

        Raises:
            ConfigurationError: the driver's processes are on its nodes.
        """
        del reason, message
        raise ConfigurationError(
            f"device {device} is on a node of a real cluster, and cannot be made ill from here; run this in the sandbox"
        )

    def _refused(self, what: str, remedy: str) -> ConfigurationError:
        return ConfigurationError(
            f"driver {self._driver} runs on nodes of a real cluster and cannot be {what} from here ({remedy}); run "
            "this in the sandbox"
        )


class RealCluster:
    """A real cluster for stories and tests; the environment of a container is read from its log, if it prints it.

    Nodes cannot be inspected, so leftovers on them are not found.

    Args:
        client: a client that may create namespaces and objects in them.
        drivers: names of the deployed drivers.
    """

    def __init__(self, client: Client, drivers: Sequence[str]) -> None:
        self.client = client
        self.drivers: Sequence[str] = drivers

    async def environment(self, namespace: str, pod: str, container: str) -> Mapping[str, str]:
        """See :func:`dra_kit.testing.real.printed_variables`."""
        return printed_variables(await self.output(namespace, pod, container))

    async def output(self, namespace: str, pod: str, container: str) -> str:
        """Return the container's log; empty while the kubelet has none."""
        try:
            return await self.client.log(pod, namespace, container)
        except KubeError:
            return ""

    async def device_nodes(self, namespace: str, pod: str, container: str) -> Mapping[str, str] | None:
        """See :func:`dra_kit.testing.real.printed_device_nodes`."""
        return printed_device_nodes(await self.output(namespace, pod, container))

    async def mounts(self, namespace: str, pod: str, container: str) -> Mapping[str, str] | None:
        """See :func:`dra_kit.testing.real.printed_mounts`."""
        return printed_mounts(await self.output(namespace, pod, container))

    async def node_state(self) -> Iterable[str]:
        """Return nothing: a node cannot be looked into from outside."""
        return ()

    def control(self, driver: str = "") -> RemoteDriverControl:
        """Refuse everything."""
        return RemoteDriverControl(driver or self.drivers[0])

    def refusal(self, namespace: str, claim: str) -> str:
        """Return nothing: of the driver's errors only the texts can be seen from outside."""
        del namespace, claim
        return ""

    def forget_refusals(self, namespace: str) -> None:
        """Do nothing: no refusal is recorded."""


@asynccontextmanager
async def real_cluster(kubeconfig: Path | None, drivers: Sequence[str]) -> AsyncIterator[RealCluster]:
    """Connect to the cluster of a kubeconfig, for the running event loop.

    Args:
        kubeconfig: the path of the kubeconfig; None for the current one.
        drivers: names of the deployed drivers.

    Raises:
        ConfigurationError: the kubeconfig does not exist or cannot be used.
    """
    credentials = await load_credentials(kubeconfig)
    async with Client(credentials, user_agent="dra-kit/testing") as client:
        yield RealCluster(client, drivers)


_VARIABLE = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)")
_DEVICE_FILE = re.compile(r"([bc])[rwxsStT-]{9}\S*\s+\d+\s+\S+\s+\S+\s+(\d+),\s*(\d+)\s.*?\s(/\S+)")
_MOUNT = re.compile(r"\d+ \d+ \d+:\d+ (\S+) (\S+) \S+ .*?- \S+ \S+ \S+")


def printed_variables(output: str) -> Mapping[str, str]:
    """Return the variables that ``env`` printed; values with line breaks are cut."""
    return {match[1]: match[2] for match in _lines(_VARIABLE, output)}


def printed_device_nodes(output: str) -> Mapping[str, str] | None:
    """Return type and numbers of what ``ls -l`` listed by its absolute path, by path; None where it listed nothing."""
    return {match[4]: f"{match[1]} {match[2]}:{match[3]}" for match in _lines(_DEVICE_FILE, output)} or None


def printed_mounts(output: str) -> Mapping[str, str] | None:
    """Return the root of each mount within its file system, by where it is mounted; None where no mount was printed.

    That is the path on the node, without that of the file system (proc_pid_mountinfo(5)).
    """
    return {match[2]: match[1] for match in _lines(_MOUNT, output)} or None


def _lines(pattern: re.Pattern[str], output: str) -> list[re.Match[str]]:
    return [match for line in output.splitlines() if (match := pattern.fullmatch(line))]
