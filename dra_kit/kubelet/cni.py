"""Calls CNI plugins for pods, as a container runtime does (CNI specification 1.1.0, sections 1 to 3 and 5)."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, Field, JsonValue

from dra_kit.author.pod_hooks import RuntimePod
from dra_kit.author.prepared import NetworkDeviceData
from dra_kit.errors import PermanentError, TransientError
from dra_kit.files import create_private
from dra_kit.kubernetes.resource.objects import ClaimReference

DEFAULT_PATH: Final = Path("/opt/cni/bin")
"""Where plugins are by default."""
_KEYS: Final = {
    key.casefold(): key
    for key in ("cniVersion", "name", "type", "capabilities", "prevResult", "runtimeConfig", "ipam", "args", "dns")
}
_INTERFACE: Final = re.compile(r"(?!\.{1,2}$)[^\s/:]{1,15}")
"""Names of interfaces (CNI specification, section 2; IFNAMSIZ of Linux)."""
_ERROR_LENGTH: Final = 500
"""Characters of a plugin's message in an Event."""


def _check_keys(plugin: dict[str, JsonValue]) -> dict[str, JsonValue]:
    # plugins in Go take "IPAM" for "ipam", so they would read other values than those that are checked here
    for part in (plugin, plugin.get("ipam")):
        for key in part if isinstance(part, dict) else ():
            if _KEYS.get(key.casefold(), key) != key:
                raise ValueError(f"{key!r} is not a key of CNI; write {_KEYS[key.casefold()]!r}")
    if "runtimeConfig" in plugin:
        raise ValueError("'runtimeConfig' is reserved for the runtime; remove it")
    return plugin


class CniNetwork(BaseModel):
    """A network configuration list, such as a file in ``/etc/cni/net.d``; also as a field of an :class:`OpaqueConfig`.

    Attributes:
        name: of the network.
        cniVersion: the version of the plugins' input and output.
        plugins: their configurations, in the order in which they add an interface.
        disableCheck: accepted; :class:`CniPlugins` runs no ``CHECK``.
        disableGC: accepted; :class:`CniPlugins` runs no ``GC``.
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]
    cniVersion: Literal["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"]  # noqa: N815 - the key of the specification
    plugins: Annotated[list[Annotated[dict[str, JsonValue], AfterValidator(_check_keys)]], Field(min_length=1)]
    disableCheck: bool = False  # noqa: N815
    disableGC: bool = False  # noqa: N815


class CniResult(BaseModel, extra="allow"):
    """The output of the last plugin of a network; ``model_dump()`` returns all of it.

    Attributes:
        interfaces: those that plugins made or changed; one without ``sandbox`` is on the node.
        ips: addresses in CIDR form; ``interface`` is an index in ``interfaces``.
    """

    interfaces: list[dict[str, Any]] = []
    ips: list[dict[str, Any]] = []

    def network_data(self, interface: str) -> NetworkDeviceData:
        """Return addresses and hardware address of an interface of the pod."""
        places = [
            place for place, item in enumerate(self.interfaces) if item.get("sandbox") and item.get("name") == interface
        ]
        ips = [ip["address"] for ip in self.ips if ip.get("interface") in {None, *places}]
        mac = self.interfaces[places[0]].get("mac", "") if places else ""
        return NetworkDeviceData(interface_name=interface, ips=ips, hardware_address=mac)


class _Attachment(BaseModel):
    """A pod in a network, stored before the first plugin runs: what ``DEL`` needs.

    Attributes:
        network: its configuration.
        parameters: environment variables of all plugins.
        result: the output of the last plugin; None until all have succeeded.
        until: when a plugin that runs has been killed, also without its driver; seconds of the monotonic clock, which
            all processes of a boot share.
    """

    network: CniNetwork
    parameters: dict[str, str]
    result: CniResult | None = None
    until: float = 0

    @classmethod
    def read(cls, file: Path) -> _Attachment:
        """Return what is in a file.

        Raises:
            FileNotFoundError: it does not exist.
            TransientError: it is corrupt.
        """
        content = file.read_bytes()
        try:
            return cls.model_validate_json(content)
        except ValueError as error:
            raise TransientError(
                f"{file} is corrupt, so the network in it cannot be left: {' '.join(str(error).split())}; release what "
                "its plugins hold, such as addresses, and remove the file",
                code="cni-failed",
            ) from error

    def write(self, file: Path) -> None:
        """Create or replace the file, durably. A kill leaves no incomplete file."""
        file.parent.mkdir(parents=True, exist_ok=True)
        new = file.with_name(f".{file.name}")  # hooks of a pod do not overlap
        new.unlink(missing_ok=True)
        with os.fdopen(create_private(new), "w", encoding="utf-8") as stream:
            stream.write(self.model_dump_json())
            stream.flush()
            os.fsync(stream.fileno())
        new.replace(file)
        folder = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


class CniPlugins:
    """Runs the CNI plugins of a node for pods.

    Call :meth:`check` in ``prepare``, :meth:`attach` in ``pod_starts``, and :meth:`detach` in ``pod_stops`` and in
    ``unprepare``. They block, so call them in ``def``. Each attachment is in a file from before its ``ADD`` until its
    ``DEL`` has succeeded, so that ``DEL`` also follows a ``kill -9``. The command ``timeout`` of coreutils is needed.

    Args:
        directory: of these files, in ``context.state_dir``.
        allowed: patterns of the names of plugins that claims may use, such as ``bridge``. Plugins run as root, so list
            only those that everyone who may create claims may use.
        path: directory of the plugins.
        timeout: seconds for all plugins of a network; the runtime waits 2 s for a hook by default.
        enter: the command that runs a plugin in the network namespace of the node, such as ``("nsenter",
            "--net=/proc/1/ns/net")``; empty if this process is in it.
    """

    def __init__(
        self,
        directory: Path,
        allowed: Sequence[str],
        *,
        path: Path = DEFAULT_PATH,
        timeout: float = 1.5,
        enter: Sequence[str] = (),
    ) -> None:
        self._directory = directory
        self._allowed = tuple(allowed)
        self._path = path
        self._timeout = timeout
        self._enter = tuple(enter)

    def check(self, network: CniNetwork) -> None:
        """Check in ``prepare`` that the plugins of a network are on this node, and that claims may use them.

        Raises:
            TransientError: one is not there, or claims may not use it.
        """
        there = {file.name for file in self._path.glob("*")}
        for plugin in _names(network):
            if not any(fnmatchcase(plugin, pattern) for pattern in self._allowed):
                problem, remedy = "is not allowed by the driver", "allow it in the settings of the driver"
            elif plugin not in there:
                problem, remedy = f"is not in {self._path} of the node", "add it"
            else:
                continue
            raise TransientError(
                f"network {network.name} cannot be used: CNI plugin {plugin} {problem}; {remedy}, or change the "
                "configuration of the network",
                code="cni-failed",
            )

    def attach(self, network: CniNetwork, interface: str, claim: ClaimReference, pod: RuntimePod) -> CniResult:
        """Run ``ADD`` for an interface of a pod's sandbox, once, and return the output of the last plugin.

        Raises:
            PermanentError: the pod uses the network of the host, or no interface can have the name.
            TransientError: a plugin fails, or takes too long.
        """
        if pod.netns is None:
            raise PermanentError(
                f"pod {pod} cannot join network {network.name}: it uses the network of the host; remove "
                "hostNetwork: true",
                code="cni-failed",
            )
        if not _INTERFACE.fullmatch(interface):
            raise PermanentError(
                f"pod {pod} cannot join network {network.name}: the name {interface!r} of its interface is invalid; "
                "use 1 to 15 characters without '/', ':' and spaces",
                code="cni-failed",
            )
        file = self._directory / f"{claim.uid}.{pod.id}.{interface}"
        if file.exists():
            if result := _Attachment.read(file).result:
                return result
            self._delete(file)  # a plugin must not get ADD twice
        owner = f"K8S_POD_NAMESPACE={pod.namespace};K8S_POD_NAME={pod.name};K8S_POD_UID={pod.uid}"
        attachment = _Attachment(
            network=network,
            parameters={
                "CNI_CONTAINERID": pod.id,
                "CNI_NETNS": str(pod.netns),
                "CNI_IFNAME": interface,
                "CNI_ARGS": f"IgnoreUnknown=1;{owner};K8S_POD_INFRA_CONTAINER_ID={pod.id}",
            },
            until=time.monotonic() + self._timeout + 1,
        )
        attachment.write(file)
        try:
            attachment.result = result = self._run("ADD", attachment)
        finally:
            attachment.until = 0
            attachment.write(file)
        return result

    def detach(self, claim: ClaimReference, pod: RuntimePod | None = None) -> None:
        """Run ``DEL`` for what is attached for a claim, in one sandbox or in all. Without attachment it does nothing.

        ``CNI_NETNS`` is empty if the pod's namespace has ended.

        Raises:
            TransientError: a plugin fails, or takes too long.
        """
        failure: TransientError | None = None
        for file in list(self._directory.glob(f"{claim.uid}.{pod.id if pod else '*'}.*")):
            try:
                self._delete(file)
            except FileNotFoundError:
                pass  # pod_stops and unprepare can overlap
            except TransientError as error:  # the others are released all the same
                failure = failure or error
        if failure is not None:
            raise failure
        if pod is None:
            for rest in self._directory.glob(f".{claim.uid}.*"):  # of a kill while it was written
                rest.unlink(missing_ok=True)

    def _delete(self, file: Path) -> None:
        latest = time.monotonic() + self._timeout + 1  # the file may be from before a reboot
        while min((attachment := _Attachment.read(file)).until, latest) > time.monotonic():
            time.sleep(0.1)
        if not Path(attachment.parameters["CNI_NETNS"]).exists():
            attachment.parameters["CNI_NETNS"] = ""
        self._run("DEL", attachment)
        file.unlink(missing_ok=True)

    def _run(self, command: Literal["ADD", "DEL"], attachment: _Attachment) -> CniResult:
        network, result = attachment.network, attachment.result
        env = os.environ | attachment.parameters | {"CNI_COMMAND": command, "CNI_PATH": str(self._path)}
        end = time.monotonic() + self._timeout
        for plugin in network.plugins if command == "ADD" else reversed(network.plugins):
            given = {key: value for key, value in plugin.items() if key not in {"capabilities", "prevResult"}}
            given |= {"cniVersion": network.cniVersion, "name": network.name}
            if result is not None:
                given["prevResult"] = result.model_dump()
            try:
                output = self._execute(str(plugin["type"]), json.dumps(given), env, end)
                if command == "ADD":
                    result = CniResult.model_validate_json(output)
            except (OSError, ValueError, subprocess.SubprocessError) as error:
                raise TransientError(
                    f"CNI plugin {plugin['type']} failed with {command} of interface {env['CNI_IFNAME']} in network "
                    f"{network.name}: {' '.join(str(error).split())[:_ERROR_LENGTH]}; change the configuration of the "
                    "network, or repair the node; the kubelet tries again",
                    code="cni-failed",
                ) from error
        return result or CniResult()

    def _execute(self, plugin: str, given: str, env: Mapping[str, str], end: float) -> str:
        left = max(end - time.monotonic(), 0.01)
        # also kills the processes of the plugin, and a plugin whose driver was killed
        command = ["timeout", "--signal=KILL", str(left), *self._enter, str(self._path / plugin)]
        done = subprocess.run(
            command, input=given, env=env, capture_output=True, text=True, check=False, timeout=left + 1
        )
        if done.returncode in {-9, 137}:
            raise TimeoutError(f"it has not finished after {self._timeout} s, the limit of the driver {done.stderr}")
        if done.returncode:
            raise OSError(
                _message(done.stdout) or (done.stdout + done.stderr).strip() or f"exit status {done.returncode}"
            )
        return done.stdout


def _names(network: CniNetwork) -> Iterator[str]:
    """Return the names of all plugins of a network, also of those that assign addresses."""
    for plugin in network.plugins:
        for part in (plugin, plugin.get("ipam")):
            if part and isinstance(part, dict):
                yield str(part.get("type"))


def _message(output: str) -> str:
    """Return the message in an error result (section 5); empty if the output is not one."""
    with suppress(AttributeError, LookupError, TypeError, ValueError):
        error = json.loads(output)
        return f"{error['msg']} {error.get('details', '')}".strip()
    return ""
