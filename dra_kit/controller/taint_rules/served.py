"""In which version the API server has DeviceTaintRules."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from dra_kit.errors import ConfigurationError, NotFound
from dra_kit.kube.client import Client
from dra_kit.kube.resources import DEVICE_TAINT_RULES, Resource
from dra_kit.kube.versions import GROUP, discover

VERSIONS: Final = ("v1", "v1beta2", "v1alpha3")
"""Best first: v1 since Kubernetes 1.37, v1beta2 since 1.36, v1alpha3 from 1.33 to 1.38."""


async def served(client: Client) -> Resource:
    """Return the resource in the best version that is served.

    Raises:
        ConfigurationError: none is (code ``taint-rules-not-served``).
        KubeError: the API server does not answer.
    """
    for version in VERSIONS:
        try:
            found = await client.get_path(f"/apis/{GROUP}/{version}")
        except NotFound:
            continue
        if any(item.get("name") == DEVICE_TAINT_RULES.plural for item in found.get("resources") or ()):
            return replace(DEVICE_TAINT_RULES, version=version)
    features = await discover(client)
    raise ConfigurationError(
        f"taint rules are not kept: the API server (Kubernetes {features}) serves DeviceTaintRules in no version; "
        "upgrade to 1.37, or switch on the gate DRADeviceTaintRules and --runtime-config=resource.k8s.io/v1beta2=true "
        "(before 1.36 v1alpha3) there, in kube-scheduler and in kube-controller-manager",
        code="taint-rules-not-served",
    )
