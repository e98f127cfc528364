"""What a container of a pod is to be: environment, command and CDI edits put together for the runtime."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dra_kit.client.api import Client
from dra_kit.client.resources import CONFIG_MAPS, SECRETS
from dra_kit.kubelet.cdi.resolution import load_specs
from dra_kit.kubernetes.resource.objects import pod_reference
from dra_kit.kubernetes.values.json import ObjectView
from dra_kit.sandbox.cluster.kubelet.pods.environment import NodeFacts, environment
from dra_kit.sandbox.cluster.kubelet.pods.expansion import expand
from dra_kit.sandbox.cluster.kubelet.pods.runtime import ContainerConfig

_HOSTNAME_LENGTH = 63


class ContainerConfigurator:
    """Makes the config of containers.

    Args:
        client: to fetch ConfigMaps and Secrets with.
        node: what containers may learn of it.
        cdi_directories: where spec files are, the one that wins last.
    """

    def __init__(self, client: Client, node: NodeFacts, cdi_directories: Sequence[Path]) -> None:
        self._client = client
        self._node = node
        self._cdi_directories = tuple(cdi_directories)

    async def config(
        self, pod: ObjectView, container: ObjectView, *, attempt: int, cdi_devices: tuple[str, ...]
    ) -> ContainerConfig:
        """Return the config of a container.

        Raises:
            KubeletError: its environment refers to something that is not there: ``CreateContainerConfigError``.
            UnresolvableDevices: no spec file defines a CDI device: ``CreateContainerError``.
            KubeError: the API server did not give a ConfigMap or Secret.
        """
        variables = await environment(pod, container, self._node, self._fetch)
        command, arguments = container.get("command") or (), container.get("args") or ()
        spec = pod["spec"]
        return ContainerConfig(
            pod=pod_reference(pod),
            name=container["name"],
            attempt=attempt,
            image=container.get("image", ""),
            command=tuple(expand(word, variables) for word in (*command, *arguments)),
            arguments_only=bool(arguments and not command),
            working_directory=container.get("workingDir") or "",
            hostname=(spec.get("hostname") or pod["metadata"]["name"])[:_HOSTNAME_LENGTH],
            environment=variables,
            cdi_devices=cdi_devices,
            # a container that asks for no device is no reason to read all spec files
            **({"edits": load_specs(self._cdi_directories).resolve(cdi_devices)} if cdi_devices else {}),
        )

    async def _fetch(self, kind: str, namespace: str, name: str) -> dict[str, Any]:
        return await self._client.get(CONFIG_MAPS if kind == "ConfigMap" else SECRETS, name, namespace)
