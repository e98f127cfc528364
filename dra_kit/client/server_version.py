"""What the API server supports for DRA: its release, and the versions of resource.k8s.io it serves."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from msgspec import Struct

from dra_kit.client.api import Client
from dra_kit.errors import ConfigurationError, KubeError, NotFound
from dra_kit.kubernetes.release import OLDEST

GROUP = "resource.k8s.io"


class ServerFeatures(Struct, frozen=True, order=True):
    """The features of a release of the API server that a driver depends on.

    Feature gates cannot be read; these features depend on the release alone.

    Attributes:
        major: 1.
        minor: such as 37; the emulated version if the server emulates an older release.
    """

    major: int
    minor: int

    @classmethod
    def from_version(cls, version: Mapping[str, Any]) -> ServerFeatures:
        """Read the response of ``/version``; hosted clusters write the minor version as ``37+``.

        Raises:
            KubeError: it does not contain a version.
        """
        for prefix in ("emulationMajor", "emulationMinor"), ("major", "minor"):
            numbers = [re.match(r"\d+", str(version.get(key, ""))) for key in prefix]
            if numbers[0] and numbers[1]:
                return cls(int(numbers[0][0]), int(numbers[1][0]))
        raise KubeError("GET /version: the response contains no version; is the server a Kubernetes API server?")

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"

    @property
    def separate_counter_slices(self) -> bool:
        """Whether shared counters are in slices without devices (1.35); before, they are in slices with devices."""
        return (self.major, self.minor) >= (1, 35)

    @property
    def pool_name_selector(self) -> bool:
        """Whether ResourceSlices can be selected by ``spec.pool.name`` (1.37); before, that is a 400."""
        return (self.major, self.minor) >= (1, 37)


def require_v1(served: Collection[str], features: ServerFeatures) -> None:
    """Check that v1 is among the served versions of resource.k8s.io; there are none if the group is not served.

    Raises:
        ConfigurationError: v1 is missing.
    """
    if "v1" in served:
        return
    found = f"serves {GROUP} only as {', '.join(sorted(served))}" if served else f"does not serve {GROUP}"
    if (features.major, features.minor) < OLDEST:
        remedy = f"upgrade the cluster to Kubernetes {OLDEST} or newer"
    else:
        remedy = (
            f"it is switched off: remove {GROUP}/v1=false from the API server's --runtime-config "
            "and DynamicResourceAllocation=false from its --feature-gates"
        )
    raise ConfigurationError(f"the API server (Kubernetes {features}) {found}, but {GROUP}/v1 is needed", remedy=remedy)


async def discover_release(client: Client) -> ServerFeatures:
    """Ask the server, in two requests, and check that it serves resource.k8s.io/v1.

    Raises:
        ConfigurationError: it does not serve it.
        KubeError: it does not respond.
    """
    features = ServerFeatures.from_version(await client.get_path("/version"))
    try:
        group = await client.get_path(f"/apis/{GROUP}")
    except NotFound:
        group = {}
    require_v1([str(version.get("version")) for version in group.get("versions") or []], features)
    return features
