"""Requests with the very token that is mounted in a driver's pod on the node."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from dra_kit.client.resources import RESOURCE_CLAIMS, RESOURCE_SLICES
from tests.cluster.deployed import Deployed
from tests.cluster.plane import Plane

_TOKEN = "/var/run/secrets/kubernetes.io/serviceaccount/token"
_PARAMETERS = "the text of parameters"
_SLICES = f"/apis/{RESOURCE_SLICES.group}/{{version}}/{RESOURCE_SLICES.plural}"


@dataclass(frozen=True)
class PodRights:
    """What the node's pod may do; each request gives kubectl's own words, empty where the API server took it.

    Attributes:
        admin: an account with all rights.
        pod: the pod.
    """

    admin: Plane
    pod: Plane

    def create_slice(self, body: dict[str, Any]) -> str:
        """Create a ResourceSlice."""
        path = _SLICES.format(version=body["apiVersion"].split("/")[1])
        return self.request("create", "--raw", path, "--filename", "-", stdin=json.dumps(body))

    def update_slice(self, body: dict[str, Any]) -> str:
        """Replace a ResourceSlice."""
        path = f"{_SLICES.format(version='v1')}/{body['metadata']['name']}"
        return self.request("replace", "--raw", path, "--filename", "-", stdin=json.dumps(body))

    def delete_slice(self, name: str) -> str:
        """Delete a ResourceSlice."""
        return self.request("delete", "--raw", f"{_SLICES.format(version='v1')}/{name}")

    def report_devices(
        self, claim: dict[str, Any], devices: list[dict[str, Any]], *, labels: dict[str, str] | None = None
    ) -> str:
        """Say something of a claim's devices in its status, by server-side apply, as the node role does."""
        metadata = {key: claim["metadata"][key] for key in ("name", "namespace", "uid")} | {"labels": labels or {}}
        body = {key: claim[key] for key in ("apiVersion", "kind")} | {
            "metadata": metadata,
            "status": {"devices": devices},
        }
        return self.request(
            "apply", "--server-side", "--force-conflicts", "--subresource=status", "--validate=false",
            "--filename", "-", stdin=json.dumps(body),
        )  # fmt: skip

    def patch_status(self, claim: dict[str, Any], status: dict[str, Any], *, version: str = "v1") -> str:
        """Change a claim's status by a merge patch."""
        metadata = claim["metadata"]
        return self.request(
            "patch", f"{RESOURCE_CLAIMS.plural}.{version}.{RESOURCE_CLAIMS.group}", metadata["name"],
            "--namespace", metadata["namespace"], "--subresource=status", "--type=merge",
            "--patch", json.dumps({"status": status}),
        )  # fmt: skip

    def request(self, *arguments: str, stdin: str | None = None) -> str:
        """Run kubectl as the pod."""
        result = self.pod.kubectl(*arguments, stdin=stdin, check=False)
        return result.stderr.strip() if result.returncode else ""

    def created(self, body: dict[str, Any]) -> Any:
        """The admin creates an object; gives it as it is then."""
        result = self.admin.kubectl("create", "--filename", "-", "--output", "json", stdin=json.dumps(body))
        return json.loads(result.stdout)


def pod_rights(driver: Deployed) -> PodRights:
    """The rights of the driver's pod on the node."""
    plane, place = driver.release.plane, ("--namespace", driver.release.namespace)
    (pod,) = driver.release.pods("node")
    token = plane.kubectl("exec", pod["metadata"]["name"], *place, "--", "cat", _TOKEN).stdout.strip()
    kubeconfig = plane.token_kubeconfig("pod", token, driver.directory / "pod.kubeconfig")
    return PodRights(plane, replace(plane, kubeconfig=kubeconfig))


def empty_slice(driver: str, node: str, *, version: str = "v1", name: str = "refusals") -> dict[str, Any]:
    """A slice without devices."""
    return {
        "apiVersion": f"{RESOURCE_SLICES.group}/{version}",
        "kind": RESOURCE_SLICES.kind,
        "metadata": {"name": f"{name}.{driver}"},
        "spec": {
            "driver": driver,
            "nodeName": node,
            "pool": {"name": f"{node}/{name}", "generation": 1, "resourceSliceCount": 1},
        },
    }


@contextmanager
def claim_of(
    plane: Plane, namespace: str, drivers: list[str], nodes: list[str], *, parameters: str = ""
) -> Iterator[dict[str, Any]]:
    """A claim that holds a device of each of these drivers, for these nodes; as the scheduler would write it.

    ``parameters`` is the text of opaque parameters for the first driver, which kubectl would write in its own way.
    """
    exactly = {"deviceClassName": "unused", "allocationMode": "ExactCount", "count": 1}
    requests = [{"name": f"from-{number}", "exactly": exactly} for number in range(len(drivers))]
    body: dict[str, Any] = {
        "apiVersion": RESOURCE_CLAIMS.api_version,
        "kind": RESOURCE_CLAIMS.kind,
        "metadata": {"name": "refusals", "namespace": namespace},
        "spec": {"devices": {"requests": requests}},
    }
    opaque = {"opaque": {"driver": drivers[0], "parameters": _PARAMETERS}}
    if parameters:
        body["spec"]["devices"]["config"] = [opaque]
    results = [
        {"request": request["name"], "driver": driver, "pool": nodes[0], "device": "device"}
        for request, driver in zip(requests, drivers, strict=True)
    ]
    terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]} for node in nodes]
    devices: dict[str, Any] = {"results": results}
    if parameters:
        devices["config"] = [{"source": "FromClaim", **opaque}]
    allocation = {"devices": devices, "nodeSelector": {"nodeSelectorTerms": terms}}

    def text(value: dict[str, Any]) -> str:
        return json.dumps(value).replace(json.dumps(_PARAMETERS), parameters)

    path = f"/apis/{RESOURCE_CLAIMS.api_version}/namespaces/{namespace}/{RESOURCE_CLAIMS.plural}"
    made = json.loads(plane.kubectl("create", "--raw", path, "--filename", "-", stdin=text(body)).stdout)
    try:
        status = text({**body, "metadata": made["metadata"], "status": {"allocation": allocation}})
        plane.kubectl("replace", "--raw", f"{path}/refusals/status", "--filename", "-", stdin=status)
        yield plane.get("resourceclaim", "refusals", "--namespace", namespace)
    finally:
        plane.kubectl("delete", "resourceclaim", "refusals", "--namespace", namespace)


def release_of(plane: Plane) -> tuple[int, int]:
    """Major and minor version of the API server."""
    version = json.loads(plane.kubectl("version", "--output", "json").stdout)["serverVersion"]
    return int(version["major"]), int(version["minor"].rstrip("+"))
