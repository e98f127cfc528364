"""A real cluster in which the driver is deployed."""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from dra_kit.author.driver import Driver
from dra_kit.client.api import Client
from dra_kit.client.credentials import load_credentials
from dra_kit.errors import ConfigurationError, KubeError
from dra_kit.sandbox.stories.facts import ResourceFacts


class RemoteDriverControl:
    """Rejects what stories and tests do to a driver, because its processes are on nodes of a real cluster."""

    awaited = ""

    def __init__(self, driver: str) -> None:
        self.driver = driver

    def _rejection(self, what: str, remedy: str) -> ConfigurationError:
        return ConfigurationError(
            f"driver {self.driver} runs on nodes of a real cluster and cannot be {what} from here ({remedy}); run this "
            "in the sandbox"
        )

    async def restart(self) -> None:
        """Raise a ConfigurationError, as the other methods do that stop the driver's process."""
        raise self._rejection("restarted", "kubectl rollout restart")

    async def kill(self) -> None:
        """Raise a ConfigurationError."""
        raise self._rejection("killed", "kill -9 on its node")

    async def kill_after(self, step: str) -> None:
        """Raise a ConfigurationError."""
        del step
        await self.kill()

    async def upgrade(self, target: str | Driver[Any, Any], /) -> None:
        """Raise a ConfigurationError."""
        del target
        raise self._rejection("upgraded", "helm upgrade")

    async def rollback(self) -> None:
        """Raise a ConfigurationError."""
        raise self._rejection("rolled back", "helm rollback")

    async def reboot(self, lost: Sequence[str] = ()) -> None:
        """Raise a ConfigurationError."""
        del lost
        raise self._rejection("terminated by a reboot", "systemctl reboot on its node")

    async def in_process(self, wanted: bool, /) -> None:
        """Reject a process that could be killed."""
        if wanted:
            await self.kill()

    async def start(self) -> None:
        """Do nothing: the driver runs."""

    async def restore(self) -> None:
        """Do nothing: the driver is unchanged."""

    async def files(self, place: str) -> Sequence[str] | None:
        """Return None: the files of nodes cannot be read remotely."""
        del place
        return None

    async def replace_file(self, setting: str, text: str) -> str:
        """Raise a ConfigurationError: the driver's files are on its nodes."""
        del text
        raise ConfigurationError(
            f"the file of the driver's setting {setting!r} is on a node of a real cluster; run this in the sandbox"
        )

    async def inject_health(self, device: str, reason: str, message: str | None) -> None:
        """Raise a ConfigurationError: the driver's processes are on its nodes."""
        del reason, message
        raise ConfigurationError(
            f"device {device} is on a node of a real cluster and cannot be made unhealthy from here; run this in the "
            "sandbox"
        )


class RealCluster:
    """A real cluster for stories and tests, whose containers must print their environment to be inspected.

    Nodes cannot be inspected, so leftovers on them are not found.

    Args:
        client: a client that may create namespaces and objects in them.
        drivers: names of the deployed drivers.
        kubeconfig: the file with its credentials; None for those of the environment.
    """

    def __init__(self, client: Client, drivers: Sequence[str], kubeconfig: Path | None = None) -> None:
        self.client = client
        self._kubeconfig = kubeconfig
        self.drivers: Sequence[str] = drivers

    @property
    def kubeconfig(self) -> Path:
        """See :class:`dra_kit.sandbox.stories.facts.Cluster`."""
        named = os.environ.get("KUBECONFIG", "")
        path = self._kubeconfig or Path(named or "~/.kube/config").expanduser()
        if not path.is_file():
            raise ConfigurationError(f"kubeconfig {path} is not one file; pass --dra-kubeconfig PATH to pytest")
        return path

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

    async def resources(self, namespace: str, pod: str, container: str) -> ResourceFacts:
        """See :func:`dra_kit.testing.real.printed_resources`."""
        return printed_resources(await self.output(namespace, pod, container))

    async def interfaces(self, namespace: str, pod: str, containers: Sequence[str]) -> Sequence[str] | None:
        """Return what the first container that prints its interfaces shows, see :func:`printed_interfaces`."""
        for container in containers:
            if (found := printed_interfaces(await self.output(namespace, pod, container))) is not None:
                return found
        return None

    async def node_state(self) -> Iterable[str]:
        """Return nothing: nodes cannot be inspected remotely."""
        return ()

    def control(self, driver: str = "") -> RemoteDriverControl:
        """Return the control of a driver, by default of the first one."""
        return RemoteDriverControl(driver or self.drivers[0])

    def refusal(self, namespace: str, claim: str) -> str:
        """Return nothing: whether an error of the driver is permanent cannot be seen remotely."""
        del namespace, claim
        return ""

    def forget_refusals(self, namespace: str) -> None:
        """Do nothing: no refusal is recorded."""


@asynccontextmanager
async def real_cluster(kubeconfig: Path | None, drivers: Sequence[str]) -> AsyncIterator[RealCluster]:
    """Connect to the cluster of a kubeconfig, by default the current one, in which the named drivers are deployed.

    Raises:
        ConfigurationError: the kubeconfig does not exist or cannot be used.
    """
    credentials = await load_credentials(kubeconfig)
    async with Client(credentials, user_agent="dra-kit/testing") as client:
        yield RealCluster(client, drivers, kubeconfig)


_VARIABLE = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)")
_DEVICE_FILE = re.compile(r"([bc])[rwxsStT-]{9}\S*\s+\d+\s+\S+\s+\S+\s+(\d+),\s*(\d+)\s.*?\s(/\S+)")
_CPUS = re.compile(r"Cpus_allowed_list:\s*(\S+)")
_MEMORY_NODES = re.compile(r"Mems_allowed_list:\s*(\S+)")
_INTERFACE = re.compile(r"\s*([^\s:/]+):(?:\s*\d+){16}\s*")
_OF_EVERY_POD = frozenset({"lo", "eth0"})
_MOUNT = re.compile(r"\d+ \d+ \d+:\d+ (\S+) (\S+) \S+ .*?- \S+ \S+ \S+")


def printed_variables(output: str) -> Mapping[str, str]:
    """Return the variables that ``env`` printed; only the first line of each value."""
    return {match[1]: match[2] for match in _lines(_VARIABLE, output)}


def printed_device_nodes(output: str) -> Mapping[str, str] | None:
    """Return type and numbers of device files in the output of ``ls -l``, by absolute path; None without any."""
    return {match[4]: f"{match[1]} {match[2]}:{match[3]}" for match in _lines(_DEVICE_FILE, output)} or None


def printed_mounts(output: str) -> Mapping[str, str] | None:
    """Return the root of each mount in a printed mountinfo, by its mount point; None without any.

    The root is the path on the node, relative to the file system (proc_pid_mountinfo(5)).
    """
    return {match[2]: match[1] for match in _lines(_MOUNT, output)} or None


def printed_resources(output: str) -> ResourceFacts:
    """Return the CPUs and memory nodes in a printed ``/proc/self/status`` (proc_pid_status(5)); no others."""
    cpus, nodes = (_lines(pattern, output) for pattern in (_CPUS, _MEMORY_NODES))
    return ResourceFacts(cpus[-1][1] if cpus else None, nodes[-1][1] if nodes else None, None, None)


def printed_interfaces(output: str) -> Sequence[str] | None:
    """Return the interfaces in a printed ``/proc/net/dev`` except those of every pod; None without any."""
    found = [match[1] for match in _lines(_INTERFACE, output)]
    return [name for name in dict.fromkeys(found) if name not in _OF_EVERY_POD] if found else None


def _lines(pattern: re.Pattern[str], output: str) -> list[re.Match[str]]:
    return [match for line in output.splitlines() if (match := pattern.fullmatch(line))]
