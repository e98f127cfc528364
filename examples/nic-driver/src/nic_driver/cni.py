"""Pods join networks through the CNI plugins of the node (CNI specification 1.1.0, sections 2, 3 and 5)."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import dra_kit as dra
from pydantic import BaseModel

from nic_driver.config import CniConfig, NetworkList
from nic_driver.hardware import Stored
from nic_driver.settings import Settings, is_in


class Result(BaseModel, extra="allow"):
    """The output of ``ADD``; an interface without ``sandbox`` is on the node."""

    interfaces: list[dict[str, Any]] = []
    ips: list[dict[str, Any]] = []

    def network_data(self, name: str) -> dra.NetworkDeviceData:
        """Return addresses and hardware address of an interface of the pod."""
        places = [at for at, item in enumerate(self.interfaces) if item.get("sandbox") and item.get("name") == name]
        ips = [ip["address"] for ip in self.ips if ip.get("interface") in {None, *places}]
        mac = self.interfaces[places[0]].get("mac", "") if places else ""
        return dra.NetworkDeviceData(interface_name=name, ips=ips, hardware_address=mac)


class Attachment(Stored):
    """A pod in a network, stored before the first plugin runs: what ``DEL`` needs.

    Attributes:
        network: its configuration.
        parameters: environment variables of all plugins.
        result: the output of the last plugin; None until all have succeeded.
        until: seconds since the epoch at which a plugin that runs has been killed, also without its driver.
    """

    network: NetworkList
    parameters: dict[str, str]
    result: Result | None = None
    until: float = 0


class Plugins:
    """Runs CNI plugins. An attachment is in a file from before its ``ADD`` until its ``DEL`` has succeeded.

    Args:
        settings: which plugins claims may use, and where they are.
        directory: of the files.
        enter: the command that runs a plugin in the network namespace of the node; empty if this process is in it.
    """

    def __init__(self, settings: Settings, directory: Path, enter: Sequence[str] = ()) -> None:
        self._settings, self._directory, self._enter = settings, directory, enter

    def check(self, network: NetworkList) -> None:
        """Check that the plugins of a network are on this node, and that claims may use them.

        Raises:
            dra_kit.TransientError: one is not there, or claims may not use it.
        """
        folder, allowed = self._settings.cni_bin, self._settings.cni_plugins
        parts = (part for plugin in network.plugins for part in (plugin, plugin.get("ipam")))
        for kind in (str(part.get("type")) for part in parts if isinstance(part, dict) and part):
            if not is_in(kind, allowed) or kind not in {path.name for path in folder.glob("*")}:
                place = f"in {folder} of the node" if is_in(kind, allowed) else "in cni_plugins of the driver"
                raise dra.TransientError(
                    f"network {network.name} cannot be used: CNI plugin {kind} is not {place}; add it, or change the "
                    "conflist"
                )

    def attach(self, config: CniConfig, claim: str, pod: dra.RuntimePod) -> Result:
        """Run ``ADD`` of all plugins for a pod's sandbox, once, and return the output of the last one.

        Raises:
            dra_kit.TransientError: a plugin fails, or takes too long.
        """
        file = self._directory / f"{claim}.{pod.id}.{config.interface}"
        if file.exists():
            if result := Attachment.read(file).result:
                return result
            self._delete(file)  # a plugin must not get ADD twice
        owner = f"K8S_POD_NAMESPACE={pod.namespace};K8S_POD_NAME={pod.name};K8S_POD_UID={pod.uid}"
        parameters = {"CNI_CONTAINERID": pod.id, "CNI_NETNS": str(pod.netns), "CNI_IFNAME": config.interface}
        parameters["CNI_ARGS"] = f"IgnoreUnknown=1;{owner};K8S_POD_INFRA_CONTAINER_ID={pod.id}"
        until = time.time() + self._settings.cni_timeout + 1
        attachment = Attachment(network=config.conflist, parameters=parameters, until=until)
        attachment.write(file)
        try:
            attachment.result = self._run("ADD", attachment)
        finally:
            attachment.until = 0
            attachment.write(file)
        return attachment.result

    def detach(self, claim: str, sandbox: str = "*") -> None:
        """Run ``DEL`` of all plugins, in reverse order, for the attachments of a claim, or those of one sandbox.

        Raises:
            dra_kit.TransientError: a plugin fails, or takes too long.
        """
        for file in self._directory.glob(f"{claim}.{sandbox}.*"):
            self._delete(file)

    def _delete(self, file: Path) -> None:
        while (attachment := Attachment.read(file)).until > time.time():
            time.sleep(0.1)
        if not Path(attachment.parameters["CNI_NETNS"]).exists():
            attachment.parameters["CNI_NETNS"] = ""  # the pod has ended
        self._run("DEL", attachment)
        file.unlink(missing_ok=True)

    def _run(self, command: str, attachment: Attachment) -> Result:
        network, result = attachment.network, attachment.result
        env = os.environ | attachment.parameters | {"CNI_COMMAND": command, "CNI_PATH": str(self._settings.cni_bin)}
        end = time.monotonic() + self._settings.cni_timeout
        for plugin in network.plugins if command == "ADD" else reversed(network.plugins):
            given = {key: plugin[key] for key in plugin if key not in {"capabilities", "prevResult"}}
            previous = {"prevResult": result.model_dump()} if result else {}
            given |= {"cniVersion": network.cniVersion, "name": network.name, **previous}
            try:
                output = self._execute(str(plugin["type"]), json.dumps(given), env, end)
                result = Result.model_validate_json(output) if command == "ADD" else result
            except (OSError, ValueError, subprocess.SubprocessError) as error:
                raise dra.TransientError(
                    f"CNI plugin {plugin['type']} failed with {command} of interface {env['CNI_IFNAME']} in network "
                    f"{network.name}: {' '.join(str(error).split())[:500]}; change the conflist, or repair the node; "
                    "the kubelet tries again"
                ) from error
        return result or Result()

    def _execute(self, plugin: str, given: str, env: dict[str, str], end: float) -> str:
        left = max(end - time.monotonic(), 0.01)
        # also kills the processes of the plugin, and a plugin whose driver was killed
        command = ["timeout", "--signal=KILL", str(left), *self._enter, str(self._settings.cni_bin / plugin)]
        done = subprocess.run(command, input=given, env=env, capture_output=True, text=True, timeout=left + 1)
        if done.returncode in {-9, 137}:
            raise TimeoutError(f"it has not finished after {self._settings.cni_timeout} s (cni_timeout) {done.stderr}")
        if done.returncode:
            with suppress(AttributeError, LookupError, TypeError, ValueError):
                error = json.loads(done.stdout)
                raise OSError(f"{error['msg']} {error.get('details', '')}")
            raise OSError((done.stdout + done.stderr).strip() or f"exit status {done.returncode}")
        return done.stdout
