"""A driver's node part for tests: real sockets, and devices that tell which instance prepared them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from dra_kit.errors import PermanentError
from dra_kit.kubelet.health import HealthService
from dra_kit.kubelet.plugin_server import DRA_VERSIONS, KubeletDevice, PluginServer, RegistrationServer
from dra_kit.kubelet.sockets import plugin_socket, registration_socket
from dra_kit.kubernetes.resource.objects import ClaimReference

DRIVER = "dra.pizza"


class Driver:
    """One instance of the driver; an asynchronous context manager that serves both sockets.

    Args:
        kubelet_dir: the kubelet's root directory.
        pod_uid: UID of the instance's pod; also the pool of its devices.
        versions: served and advertised versions of the DRA service.
        advertised: what to advertise instead.

    Attributes:
        health: tells the kubelet of devices; nothing at first.
    """

    def __init__(
        self,
        kubelet_dir: Path,
        pod_uid: str | None = None,
        *,
        versions: Sequence[str] = DRA_VERSIONS,
        advertised: Sequence[str] | None = None,
    ) -> None:
        self.pool = pod_uid or "pool"
        socket = plugin_socket(kubelet_dir, DRIVER, pod_uid)
        self.health = HealthService()
        self.plugin = PluginServer(self, socket, versions=versions, health=self.health)
        self.registration = RegistrationServer(
            DRIVER,
            endpoint=socket,
            supported_versions=self.plugin.supported_versions if advertised is None else advertised,
            socket=registration_socket(kubelet_dir, DRIVER, pod_uid),
        )

    async def prepare(self, claims: Sequence[ClaimReference]) -> Mapping[str, Sequence[KubeletDevice] | Exception]:
        return {
            claim.uid: PermanentError("burnt")
            if claim.name == "burnt"
            else [KubeletDevice(("pizza",), self.pool, claim.name, (f"dra.pizza/claim={claim.uid}",), "share-1")]
            for claim in claims
        }

    async def unprepare(self, claims: Sequence[ClaimReference]) -> Mapping[str, Exception | None]:
        return {claim.uid: PermanentError("stuck") if claim.name == "burnt" else None for claim in claims}

    async def __aenter__(self) -> Self:
        await self.plugin.start()
        self.registration.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.registration.stop(0)
        await self.plugin.stop(0)
