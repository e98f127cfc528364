"""The kubelet's side of the sockets: registration, and recorded calls; and what a real kubelet shows."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any, Final, Literal
from urllib.parse import quote

import grpc.aio
from msgspec import Struct

from dra_kit.client.api import Client
from dra_kit.client.transport import ClientRequest
from dra_kit.errors import KubeError, KubeletError, Unavailable
from dra_kit.kubelet.plugin_client import (
    CALL_TIMEOUT,
    GET_INFO_TIMEOUT,
    SUPPORTED_SERVICES,
    ClaimAnswer,
    PluginClient,
    PluginInfo,
    find_sockets,
    get_info,
    open_channel,
    rpc_error_text,
    select_health_service,
)
from dra_kit.kubelet.plugin_server import PLUGIN_TYPE
from dra_kit.kubelet.proto import pluginregistration_v1_pb2 as pb
from dra_kit.kubelet.proto import pluginregistration_v1_pb2_grpc as pb_grpc
from dra_kit.kubernetes.release import UNMODIFIED
from dra_kit.kubernetes.resource.objects import ClaimReference
from dra_kit.sandbox.kubelet.plugin_manager import NOTIFY_TIMEOUT

STANDARD_ROOT: Final = Path("/var/lib/kubelet")
"""The kubelet's root directory in a container that mounts the simulated one there."""
POLL: Final = 0.02
"""Seconds between two looks for sockets, files and objects."""
_NOTIFY_ATTEMPTS: Final = 3

_SAMPLE: Final = re.compile(
    r"^(plugin_manager_total_plugins|dra_grpc_operations_duration_seconds_count)\{(.*)\} ([0-9.eE+]+)", re.MULTILINE
)
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class PluginCall(Struct, frozen=True):
    """A call of the kubelet, for evidence."""

    method: str
    sent: str
    answer: str
    seconds: float

    def __str__(self) -> str:
        return f"{self.method}({self.sent}) after {self.seconds:.1f} s: {self.answer}"


class RegisteredPlugin(Struct, frozen=True):
    """A plugin that has registered."""

    socket: Path
    info: PluginInfo

    @property
    def versions(self) -> list[str]:
        """The versions of the DRA service that it advertises and a kubelet calls."""
        return [version for version in self.info.supported_versions if version in SUPPORTED_SERVICES]


class ConformanceKubelet:
    """Registers plugins and calls them as a kubelet does, one step at a time.

    Args:
        root: the kubelet's root directory.

    Attributes:
        calls: all calls, oldest first.
        plugin: the plugin that registered last; None before.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._clients: dict[tuple[str, str, float], PluginClient] = {}
        self.calls: list[PluginCall] = []
        self.plugin: RegisteredPlugin | None = None

    async def close(self) -> None:
        """Close all connections."""
        clients, self._clients = self._clients, {}
        for client in clients.values():
            await client.close()

    # --- registration

    def sockets(self) -> list[Path]:
        """Return the sockets in the registry, oldest first."""
        found = find_sockets(self._root / "plugins_registry")
        return sorted(found, key=lambda path: found[path][2])

    def service_sockets(self) -> list[Path]:
        """Return the sockets below ``plugins``."""
        return list(find_sockets(self._root / "plugins"))

    def reachable(self, endpoint: str) -> str:
        """Return the path of an endpoint here: that of a container may begin with ``/var/lib/kubelet``."""
        path = Path(endpoint)
        if not path.exists() and path.is_relative_to(STANDARD_ROOT):
            return str(self._root / path.relative_to(STANDARD_ROOT))
        return endpoint

    async def get_info(self, socket: Path, timeout: float = GET_INFO_TIMEOUT) -> PluginInfo:
        """Call GetInfo; a plugin without an endpoint has its registration socket as endpoint.

        Raises:
            KubeletError: it did not answer.
        """
        started = time.monotonic()
        async with open_channel(str(socket)) as channel:
            try:
                info = await get_info(pb_grpc.RegistrationStub(channel), socket, timeout)
            except KubeletError as error:
                self._record("GetInfo", socket.name, str(error), started)
                raise
        self._record("GetInfo", socket.name, _shown_info(info), started)
        return info

    async def notify(self, socket: Path, *, error: str = "") -> str:
        """Call NotifyRegistrationStatus, negative with an error; return the text of the error of the call, or "".

        A call that misses its deadline is repeated, because the machine may be busy.
        """
        started, problem = time.monotonic(), ""
        async with open_channel(str(socket)) as channel:
            status = pb.RegistrationStatus(plugin_registered=not error, error=error)
            for _ in range(_NOTIFY_ATTEMPTS):
                try:
                    await pb_grpc.RegistrationStub(channel).NotifyRegistrationStatus(status, timeout=NOTIFY_TIMEOUT)
                except grpc.aio.AioRpcError as failure:
                    problem = rpc_error_text(failure)
                    if failure.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                        continue
                else:
                    problem = ""
                break
        sent = f"plugin_registered: {str(not error).lower()}" + (f', error: "{error}"' if error else "")
        self._record("NotifyRegistrationStatus", sent, problem or "ok", started)
        return problem

    async def register(
        self,
        timeout: float,
        *,
        driver: str = "",
        ignore: Sequence[Path] = (),
        alive: Callable[[], bool] = lambda: True,
    ) -> RegisteredPlugin:
        """Wait for a plugin, and register it: GetInfo, and a positive NotifyRegistrationStatus.

        Args:
            timeout: seconds to wait.
            driver: the name of the driver; empty for any.
            ignore: sockets of other plugins.
            alive: whether the driver's process still runs; if not, the wait ends.

        Raises:
            KubeletError: none registered in time; the text has the last problem.
        """
        end, problem = time.monotonic() + timeout, ""
        while True:
            for socket in reversed(self.sockets()):
                if socket in ignore:
                    continue
                try:
                    info = await self.get_info(socket)
                except KubeletError as error:
                    problem = str(error)
                    continue
                if info.type != PLUGIN_TYPE or (driver and info.name != driver):
                    problem = f"{socket.name} is a plugin of type {info.type!r} with the name {info.name!r}"
                    continue
                await self.notify(socket)
                self.plugin = RegisteredPlugin(socket, info)
                return self.plugin
            exited = not alive()
            if exited or time.monotonic() > end:
                problem = problem or f"no socket in {self._root}/plugins_registry"
                when = "before the driver's process exited" if exited else f"within {timeout:g} s"
                raise KubeletError(f"no DRA plugin registered {when}: {problem}")
            await asyncio.sleep(POLL)

    # --- calls

    def client(self, plugin: RegisteredPlugin, service: str = "", timeout: float = CALL_TIMEOUT) -> PluginClient:
        """Return a connection to a plugin for a version of the DRA service; by default the newest it advertises."""
        service = service or next(iter(sorted(plugin.versions, key=SUPPORTED_SERVICES.index)), SUPPORTED_SERVICES[0])
        endpoint = self.reachable(plugin.info.endpoint)
        key = endpoint, service, timeout
        if key not in self._clients:
            health = select_health_service(plugin.info.supported_versions, UNMODIFIED)
            self._clients[key] = PluginClient(endpoint, service, timeout=timeout, health_service=health)
        return self._clients[key]

    async def forget(self) -> None:
        """Close the connections to plugins that are gone."""
        self.plugin = None
        await self.close()

    async def prepare(
        self,
        claims: Sequence[ClaimReference],
        *,
        plugin: RegisteredPlugin | None = None,
        service: str = "",
        timeout: float = CALL_TIMEOUT,
    ) -> dict[str, ClaimAnswer]:
        """Call NodePrepareResources; return the answers by UID, unchecked.

        Raises:
            KubeletError: the call failed.
        """
        started, sent = time.monotonic(), ", ".join(claim.name for claim in claims)
        try:
            answers = await self._client_of(plugin, service, timeout).prepare(claims)
        except KubeletError as error:
            self._record("NodePrepareResources", sent, str(error), started)
            raise
        self._record("NodePrepareResources", sent, shown_answers(answers), started)
        return answers

    async def unprepare(
        self, claims: Sequence[ClaimReference], *, plugin: RegisteredPlugin | None = None, timeout: float = CALL_TIMEOUT
    ) -> dict[str, str]:
        """Call NodeUnprepareResources; return the errors by UID, empty for success.

        Raises:
            KubeletError: the call failed.
        """
        started, sent = time.monotonic(), ", ".join(claim.name for claim in claims)
        try:
            answers = await self._client_of(plugin, "", timeout).unprepare(claims)
        except KubeletError as error:
            self._record("NodeUnprepareResources", sent, str(error), started)
            raise
        shown = ", ".join(f"{uid[:8]}: {error or 'ok'}" for uid, error in answers.items())
        self._record("NodeUnprepareResources", sent, shown or "no entry", started)
        return answers

    def _client_of(self, plugin: RegisteredPlugin | None, service: str, timeout: float) -> PluginClient:
        plugin = plugin or self.plugin
        if plugin is None:
            raise KubeletError("no DRA plugin is registered")
        return self.client(plugin, service, timeout)

    def _record(self, method: str, sent: str, answer: str, started: float) -> None:
        self.calls.append(PluginCall(method, sent, answer, time.monotonic() - started))


def _shown_info(info: PluginInfo) -> str:
    versions = ", ".join(info.supported_versions)
    return f"type {info.type!r}, name {info.name!r}, endpoint {info.endpoint!r}, supported_versions [{versions}]"


def shown_answers(answers: Mapping[str, ClaimAnswer]) -> str:
    """Return answers of NodePrepareResources for people."""
    return "; ".join(f"{uid[:8]}: {shown_answer(answer)}" for uid, answer in answers.items()) or "no entry"


def shown_answer(answer: ClaimAnswer) -> str:
    """Return one answer for people."""
    if answer.error:
        return f"error {answer.error!r}"
    devices = [
        f"{device.pool_name}/{device.device_name}"
        + (f" share {device.share_id}" if device.share_id else "")
        + f" for {', '.join(device.request_names) or 'all requests'}"
        + f" as {', '.join(device.cdi_device_ids) or 'no CDI id'}"
        for device in answer.devices
    ]
    return " and ".join(devices) or "no devices"


def missed_deadline(error: KubeletError) -> bool:
    """Return whether a call failed only because the driver did not answer in time."""
    cause = error.__cause__
    return isinstance(cause, grpc.aio.AioRpcError) and cause.code() is grpc.StatusCode.DEADLINE_EXCEEDED


async def connects(path: str) -> bool:
    """Return whether a socket accepts a connection at once."""
    with suppress(OSError):
        _, writer = await asyncio.open_unix_connection(path)
        writer.close()
        return True
    return False


class KubeletMetrics(Struct, frozen=True):
    """What a kubelet's metrics contain about plugins: name, labels and value of each sample."""

    samples: Sequence[tuple[str, Mapping[str, str], float]]

    @classmethod
    async def fetch(cls, client: Client, node: str) -> KubeletMetrics | None:
        """Return the metrics of a node's kubelet; None without a node, or if the client may not read them.

        Raises:
            Unavailable: the API server or the kubelet does not answer now.
        """
        if not node:
            return None
        try:
            answer = await client.exchange(ClientRequest.of_path(f"/api/v1/nodes/{quote(node, safe='')}/proxy/metrics"))
        except Unavailable:
            raise
        except KubeError:
            return None
        return cls.parse(answer.text.decode(errors="replace"))

    @classmethod
    def parse(cls, text: str) -> KubeletMetrics:
        """Read the text that Prometheus reads."""
        return cls(
            [(name, dict(_LABEL.findall(labels)), float(value)) for name, labels, value in _SAMPLE.findall(text)]
        )

    def sockets(self, driver: str, *, state: Literal["actual", "desired"]) -> list[str]:
        """Return the sockets that are named after a driver: the registered ones, or all that the kubelet has found."""
        # names of other drivers may begin or end with this one; the UID of a pod may be shortened to a hash
        own = re.compile(rf"{re.escape(driver)}(-([0-9a-f-]{{32,36}}|[\w-]{{11}}))?(-reg)?\.sock")
        return [
            labels["socket_path"]
            for name, labels, value in self.samples
            if name == "plugin_manager_total_plugins" and labels.get("state") == f"{state}_state_of_world" and value
            if own.fullmatch(PurePosixPath(labels.get("socket_path", "")).name)
        ]  # fmt: skip

    def calls(self, driver: str, method: str) -> dict[str, int]:
        """Return how many calls of a driver had each status."""
        found: dict[str, int] = {}
        for name, labels, value in self.samples:
            if name != "dra_grpc_operations_duration_seconds_count" or labels.get("driver_name") != driver:
                continue
            if labels.get("method_name", "").endswith(method):
                status = labels.get("grpc_status_code", "?")
                found[status] = found.get(status, 0) + int(value)
        return found


_BEFORE_PREPARE: Final = frozenset({"", "ContainerCreating", "PodInitializing"})


def is_prepared(status: Mapping[str, Any]) -> bool:
    """Return whether a kubelet has prepared the claims of a pod, by the status that it has written."""
    if any(
        (entry["type"], entry["status"]) == ("PodReadyToStartContainers", "True")
        for entry in status.get("conditions") or ()
    ):
        return True
    states = [container.get("state", {}) for container in status.get("containerStatuses") or ()]
    return any(
        "running" in state or "terminated" in state or state.get("waiting", {}).get("reason", "") not in _BEFORE_PREPARE
        for state in states
    )


def runs(status: Mapping[str, Any]) -> bool:
    """Return whether the two containers of a pod run, by its status."""
    states = [container.get("state", {}) for container in status.get("containerStatuses") or ()]
    return len(states) > 1 and all("running" in state for state in states)
