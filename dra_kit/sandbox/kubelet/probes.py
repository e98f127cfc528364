"""Probes of containers: when they run, what they ask, and what follows from their results.

Periods and delays are divided by the time scale; timeouts are not.

Sources: Kubernetes 1.37 ``pkg/kubelet/prober`` and ``pkg/probe``; the messages were measured on a kubelet 1.37.1.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import os
import ssl
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, Final, Literal, TypeAlias
from urllib.parse import urljoin, urlsplit

import grpc
import grpc.aio
from msgspec import Struct

from dra_kit.apiserver.pod_streams import StreamOptions
from dra_kit.client.events import EventRecorder
from dra_kit.errors import KubeletError
from dra_kit.kubernetes.release import KubernetesVersion
from dra_kit.kubernetes.resource.objects import containers, init_containers, is_sidecar
from dra_kit.kubernetes.values.json import ObjectView
from dra_kit.sandbox.containers.node_namespace import RelayedConnections
from dra_kit.sandbox.containers.process_runtime import ProcessRuntime
from dra_kit.sandbox.containers.runtime import ContainerStatus
from dra_kit.sandbox.containers.streams import open_command
from dra_kit.sandbox.kubelet.container_starter import record_pod_event
from dra_kit.sandbox.kubelet.environment import expand_variables
from dra_kit.sandbox.kubelet.pod_status import ContainerHealth

ProbeKind: TypeAlias = Literal["startup", "liveness", "readiness"]
_KINDS: Final[tuple[ProbeKind, ...]] = ("startup", "liveness", "readiness")
_SHORTEST_PAUSE: Final = 0.02
_ATTEMPTS: Final = 3  # of a probe that could not be carried out
_OUTPUT_MAX: Final = 10 * 1024
_REDIRECTS: Final = (301, 302, 303, 307, 308)
_MOST_REDIRECTS: Final = 10
_BLOCK: Final = 1 << 16
_HEALTHY: Final = 1
_HEALTH: Final = {0: "UNKNOWN", 2: "NOT_SERVING", 3: "SERVICE_UNKNOWN"}


class ProbeSettings(Struct, frozen=True):
    """When a probe runs, and how many results in a row count; seconds are those of the spec."""

    initial_delay: float = 0
    period: float = 10
    timeout: float = 1
    success_threshold: int = 1
    failure_threshold: int = 3

    @classmethod
    def of(cls, probe: Mapping[str, Any]) -> ProbeSettings:
        """Read them from a pod."""
        return cls(
            probe.get("initialDelaySeconds") or 0,
            probe.get("periodSeconds") or 10,
            probe.get("timeoutSeconds") or 1,
            probe.get("successThreshold") or 1,
            probe.get("failureThreshold") or 3,
        )


class ProbeResult(Struct, frozen=True):
    """The result of one probe.

    Attributes:
        success: None if it could not be carried out.
        output: what the container says, or why the probe failed.
    """

    success: bool | None
    output: str = ""


class ProbeVerdict:
    """What the results of one probe of one container say: it changes after enough equal results in a row."""

    def __init__(self, kind: ProbeKind, settings: ProbeSettings) -> None:
        self.holds: bool | None = {"startup": None, "liveness": True, "readiness": False}[kind]
        """Whether the container is well; None while nothing is known."""
        self._settings = settings
        self._last: bool | None = None
        self._row = 0

    def add(self, *, success: bool) -> bool:
        """Add a result; return whether the verdict has changed."""
        self._row = self._row + 1 if success is self._last else 1
        self._last = success
        needed = self._settings.success_threshold if success else self._settings.failure_threshold
        before = self.holds
        if self._row >= needed:
            self.holds = success
        return self.holds is not before


class PodProbes:
    """The probes of one pod's containers, each a task; for one event loop.

    Args:
        runtime: in which the containers run.
        recorder: gets Events about failed probes.
        address: of the pod.
        version: of the kubelet, which servers see.
        changed: called when the health of a container has changed.
    """

    def __init__(
        self,
        runtime: ProcessRuntime,
        recorder: EventRecorder,
        *,
        address: str,
        version: KubernetesVersion,
        time_scale: float,
        changed: Callable[[], None],
    ) -> None:
        self._runtime, self._recorder = runtime, recorder
        self._address, self._time_scale, self._changed = address, time_scale, changed
        self._agent = f"kube-probe/{version}"
        self._verdicts: dict[tuple[str, ProbeKind], ProbeVerdict] = {}  # by ID of the container
        self._tasks: dict[str, list[asyncio.Task[None]]] = {}

    def follow(self, pod: ObjectView, statuses: Sequence[ContainerStatus]) -> None:
        """Begin to probe containers that run, and stop with those that do not run any longer.

        A container without a process, which only counts as running, is not probed.
        """
        running = {status.id: status for status in statuses if status.running}
        for identity in self._tasks.keys() - running.keys():
            self._stop(identity)
        for container in _probed(pod):
            status = next((item for item in running.values() if item.name == container["name"]), None)
            if status is None or status.id in self._tasks or not self._has_process(status):
                continue
            probes: dict[ProbeKind, ObjectView] = {
                kind: probe for kind in _KINDS if (probe := container.get(f"{kind}Probe"))
            }
            for kind, probe in probes.items():
                self._verdicts[status.id, kind] = ProbeVerdict(kind, ProbeSettings.of(probe))
            self._tasks[status.id] = [
                asyncio.create_task(self._probe(pod, container, status, kind, probe), name=f"{kind} probe")
                for kind, probe in probes.items()
            ]

    def close(self) -> None:
        """Stop all probes."""
        for identity in list(self._tasks):
            self._stop(identity)

    def health(self, pod: ObjectView, statuses: Sequence[ContainerStatus]) -> dict[str, ContainerHealth]:
        """Return the health of the running containers that have probes, by name."""
        found = {}
        for container in _probed(pod):
            status = next((item for item in statuses if item.name == container["name"] and item.running), None)
            if status is not None and any(container.get(f"{kind}Probe") for kind in _KINDS):
                found[status.name] = self._health(container, status)
        return found

    def _health(self, container: ObjectView, status: ContainerStatus) -> ContainerHealth:
        holds = {
            kind: verdict.holds for kind in _KINDS if (verdict := self._verdicts.get((status.id, kind))) is not None
        }
        failed: Literal["", "startup", "liveness"] = "startup" if holds.get("startup") is False else ""
        if holds.get("liveness") is False:
            failed = "liveness"
        started = holds.get("startup", True) is True
        grace = (container.get(f"{failed}Probe") or {}).get("terminationGracePeriodSeconds")
        return ContainerHealth(started, started and holds.get("readiness", True) is True, failed, grace)

    def _has_process(self, status: ContainerStatus) -> bool:
        report = self._runtime.find(status.id)
        return report is not None and report.has_process

    def _stop(self, identity: str) -> None:
        for task in self._tasks.pop(identity):
            task.cancel()
        for kind in _KINDS:
            self._verdicts.pop((identity, kind), None)

    async def _probe(
        self, pod: ObjectView, container: ObjectView, status: ContainerStatus, kind: ProbeKind, probe: ObjectView
    ) -> None:
        """Probe a container until it ends, or until it has to be restarted."""
        settings, verdict = ProbeSettings.of(probe), self._verdicts[status.id, kind]
        elapsed = (dt.datetime.now(dt.UTC) - status.started).total_seconds()
        await asyncio.sleep(max(settings.initial_delay / self._time_scale - elapsed, 0))
        while True:
            startup = self._verdicts.get((status.id, "startup"))
            if kind == "startup" or startup is None or startup.holds:
                result = await self._ask(pod, container, status, probe, settings.timeout)
                if not result.success:
                    self._report(pod, container, kind, result)
                if result.success is not None and verdict.add(success=result.success):
                    self._changed()
                if (kind == "startup" and verdict.holds is not None) or (kind == "liveness" and not verdict.holds):
                    return
            await asyncio.sleep(max(settings.period / self._time_scale, _SHORTEST_PAUSE))

    async def _ask(
        self, pod: ObjectView, container: ObjectView, status: ContainerStatus, probe: ObjectView, timeout: float
    ) -> ProbeResult:
        result = ProbeResult(None, "missing probe handler")
        for _ in range(_ATTEMPTS):
            try:
                return await self._ask_once(pod["metadata"]["uid"], container, status, probe, timeout)
            except (KubeletError, ValueError) as error:
                result = ProbeResult(None, str(error))
        return result

    async def _ask_once(
        self, pod_uid: str, container: ObjectView, status: ContainerStatus, probe: ObjectView, timeout: float
    ) -> ProbeResult:
        """Carry out a probe.

        Raises:
            KubeletError: the command cannot be started.
            ValueError: the container has no such port.
        """
        if action := probe.get("exec"):
            # the kubelet (pkg/kubelet/prober) takes the values of the spec as they are, and none of other sources
            variables = {item["name"]: item.get("value") or "" for item in container.get("env") or ()}
            command = [expand_variables(word, variables) for word in action.get("command") or ()]
            return await _run(self._runtime, status.id, command, timeout)
        if action := probe.get("httpGet"):
            return await self._get(pod_uid, container, action, timeout)
        if action := probe.get("tcpSocket"):
            return await self._connect(pod_uid, action.get("host") or "", port_of(container, action["port"]), timeout)
        action = probe["grpc"]
        return await self._check(pod_uid, action["port"], action.get("service") or "", timeout)

    async def _check(self, pod_uid: str, port: int, service: str, timeout: float) -> ProbeResult:
        """Ask a server of a pod, at any port, also in a network that only the runtime reaches."""
        connections = RelayedConnections()
        accept = connections.to(partial(self._runtime.dial, pod_uid, port))
        with ExitStack() as stack:
            try:
                directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="dra-kit-probe-"))
                descriptor = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
                stack.callback(os.close, descriptor)
                path = f"/proc/self/fd/{descriptor}/grpc"  # short enough for the address of a socket
                server = await asyncio.start_unix_server(accept, path, limit=_BLOCK)
            except OSError as error:
                raise KubeletError(f"the probe cannot be carried out: {error}") from None
            try:
                shown = f"{self._address}:{port}"
                return await check_grpc(f"unix:{path}", service, timeout, shown=shown, agent=self._agent)
            finally:
                await connections.close()
                server.close()

    async def _dial(self, pod_uid: str, host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if host and host != self._address:
            return await asyncio.open_connection(host, port)
        return await self._runtime.dial(pod_uid, port)

    async def _connect(self, pod_uid: str, host: str, port: int, timeout: float) -> ProbeResult:
        where = f"{host or self._address}:{port}"
        try:
            async with asyncio.timeout(timeout):
                _, writer = await self._dial(pod_uid, host, port)
        except TimeoutError:
            return ProbeResult(False, f"dial tcp {where}: i/o timeout")
        except OSError as error:
            return ProbeResult(False, _dial_error(where, error))
        writer.close()
        return ProbeResult(True)

    async def _get(self, pod_uid: str, container: ObjectView, action: Mapping[str, Any], timeout: float) -> ProbeResult:
        port, scheme = port_of(container, action["port"]), (action.get("scheme") or "HTTP").lower()
        path = action.get("path") or "/"
        url = f"{scheme}://{action.get('host') or self._address}:{port}{'' if path.startswith('/') else '/'}{path}"
        headers = {item["name"]: item["value"] for item in action.get("httpHeaders") or ()}
        first = urlsplit(url).hostname
        try:
            async with asyncio.timeout(timeout):
                status, location = await self._request(pod_uid, url, headers)
                for _ in range(_MOST_REDIRECTS):
                    if status not in _REDIRECTS or not location:
                        break
                    url = urljoin(url, location)
                    if urlsplit(url).hostname != first:
                        return ProbeResult(True, "Probe terminated redirects")
                    status, location = await self._request(pod_uid, url, headers)
        except TimeoutError:
            why = "context deadline exceeded (Client.Timeout exceeded while awaiting headers)"
            return ProbeResult(False, f'Get "{url}": {why}')
        except OSError as error:
            place = urlsplit(url)
            return ProbeResult(False, f'Get "{url}": {_dial_error(f"{place.hostname}:{place.port}", error)}')
        except (EOFError, ValueError, asyncio.LimitOverrunError):  # the last one: more than 64 KiB of headers
            return ProbeResult(False, f'Get "{url}": EOF')
        if 200 <= status < 400:
            return ProbeResult(True)
        return ProbeResult(False, f"HTTP probe failed with statuscode: {status}")

    async def _request(self, pod_uid: str, url: str, headers: Mapping[str, str]) -> tuple[int, str]:
        """Return status and ``Location`` of the answer to a GET."""
        place = urlsplit(url)
        port = place.port or (443 if place.scheme == "https" else 80)
        reader, writer = await self._dial(pod_uid, place.hostname or "", port)
        try:
            if place.scheme == "https":
                context = ssl.create_default_context()
                context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
                await writer.start_tls(context)
            target = (place.path or "/") + (f"?{place.query}" if place.query else "")
            sent = {"Host": place.netloc, "User-Agent": self._agent, "Accept": "*/*", "Connection": "close", **headers}
            lines = [f"GET {target} HTTP/1.1", *(f"{name}: {value}" for name, value in sent.items()), "", ""]
            writer.write("\r\n".join(lines).encode())
            head = (await reader.readuntil(b"\r\n\r\n")).decode(errors="replace").split("\r\n")
            fields = {
                name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])
            }
            return int([*head[0].split(), "", ""][1]), fields.get("location", "")
        finally:
            writer.close()

    def _report(self, pod: ObjectView, container: ObjectView, kind: ProbeKind, result: ProbeResult) -> None:
        title = kind.capitalize()
        note = f"{title} probe failed: {result.output}"
        if result.success is None:
            note = f"{title} probe errored and resulted in unknown state: {result.output}"
        record_pod_event(self._recorder, pod, "Warning", "Unhealthy", note, container=container["name"])


def _probed(pod: ObjectView) -> Iterator[ObjectView]:
    yield from containers(pod)
    yield from filter(is_sidecar, init_containers(pod))


def port_of(container: ObjectView, port: int | str) -> int:
    """Return a port of a container, given by its number or its name.

    Raises:
        ValueError: it has no such port.
    """
    if isinstance(port, int):
        return port
    for item in container.get("ports") or ():
        if item.get("name") == port:
            return int(item["containerPort"])
    if port.isdecimal():
        return int(port)
    raise ValueError(f'strconv.Atoi: parsing "{port}": invalid syntax')


def _dial_error(where: str, error: OSError) -> str:
    cause = (error.strerror or str(error)).lower()
    if isinstance(error, ConnectionRefusedError):
        cause = "connection refused"
    return f"dial tcp {where}: connect: {cause}"


async def _run(runtime: ProcessRuntime, container_id: str, command: Sequence[str], timeout: float) -> ProbeResult:
    """Run a command in a container; it succeeds with exit code 0."""
    ends = open_command(StreamOptions(stdout=True))
    try:
        try:
            none, output, _ = ends.child
            ended = await runtime.exec(container_id, command, (none, output, output))
        except KubeletError as error:
            raise KubeletError(f"rpc error: code = Unknown desc = {error}") from None
        finally:
            ends.close_child()
        text = b""
        try:
            async with asyncio.timeout(timeout):
                while ends.output is not None and (data := await ends.output.read(ended)):
                    text += data[: max(_OUTPUT_MAX - len(text), 0)]
                code = await asyncio.shield(ended)
        except TimeoutError:
            ended.cancel()
            shown = " ".join(command)
            return ProbeResult(False, f'command timed out: "{shown}" timed out after {timeout:g}s')
        except asyncio.CancelledError:
            ended.cancel()
            raise
    finally:
        ends.close()
    return ProbeResult(code == 0, text.decode(errors="replace"))


async def check_grpc(target: str, service: str, timeout: float, *, shown: str, agent: str) -> ProbeResult:
    """Ask a server whether a service is healthy (``grpc.health.v1.Health/Check``); messages show an address."""
    name = service.encode()
    length = bytes((len(name),)) if len(name) < 128 else bytes((len(name) & 127 | 128, len(name) >> 7))
    request = b"\x0a" + length + name if name else b""
    options = [("grpc.enable_http_proxy", 0), ("grpc.default_authority", shown)]
    async with grpc.aio.insecure_channel(target, options=options) as channel:
        check: Any = channel.unary_unary("/grpc.health.v1.Health/Check", bytes, bytes)
        try:
            async with asyncio.timeout(timeout):
                await channel.channel_ready()
                answer = await check(request, metadata=(("user-agent", agent),))
        except TimeoutError:
            why = f'failed to connect service "{shown}" within {timeout:g}s: context deadline exceeded'
            return ProbeResult(False, f"timeout: {why}")
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                why = "this server does not implement the grpc health protocol (grpc.health.v1.Health)"
                return ProbeResult(False, f"error: {why}: {error.details()}")
            return ProbeResult(False, f"error: health rpc probe failed: {error.details()}")
    state = answer[1] if len(answer) >= 2 else 0  # its only field is a number
    if state == _HEALTHY:
        return ProbeResult(True)
    return ProbeResult(False, f'service unhealthy (responded with "{_HEALTH.get(state, "UNKNOWN")}")')
