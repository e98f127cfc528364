"""Programs in pods of a sandbox reach its API server, as their service account."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dra_kit.client.resources import CONFIG_MAPS, PODS, ROLE_BINDINGS, Resource
from dra_kit.sandbox.cluster import Sandbox
from tests.unit.sandbox.cluster.kubelet.polling import until

SERVICES = Resource("", "v1", "services", "Service", namespaced=True)
# what client-go's rest.InClusterConfig does; where volumes cannot be mounted, the variable says where they are
PROGRAM = """
import json, os, ssl, urllib.error, urllib.request
folder = "/var/run/secrets/kubernetes.io/serviceaccount"
if not os.path.isdir(folder):
    folder = dict(item.split("=") for item in os.environ["DRA_KIT_SANDBOX_MOUNTS"].split(":"))[folder]
read = lambda name: open(f"{folder}/{name}").read()
url = f"https://{os.environ['KUBERNETES_SERVICE_HOST']}:{os.environ['KUBERNETES_SERVICE_PORT']}"
headers = {"Authorization": "Bearer " + read("token")}
def get(path):
    try:
        with urllib.request.urlopen(
            urllib.request.Request(url + path, headers=headers), context=ssl.create_default_context(cafile=folder + "/ca.crt")
        ) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return json.load(error)["message"]
print(json.dumps([read("namespace"), get("/api/v1/namespaces/default/configmaps"), get("/api/v1/nodes")]))
"""  # noqa: E501 - a program


@pytest.fixture
async def sandbox() -> AsyncIterator[Sandbox]:
    async with Sandbox([]) as made:
        yield made


async def output(sandbox: Sandbox, *command: str, **spec: Any) -> str:
    """What a pod wrote until it ended."""
    container = {"name": "c", "image": "x", "command": list(command)}
    spec = {"restartPolicy": "Never", "containers": [container], **spec}
    await sandbox.client.create(PODS, {"metadata": {"name": "p"}, "spec": spec}, "default")
    api = sandbox.control_plane.server.api
    await until(lambda: (api.lookup("pods", "default/p") or {})["status"]["phase"] in {"Succeeded", "Failed"})
    return await sandbox.output("default", "p", "c")


async def test_program_calls_the_api_with_the_rights_of_its_account(sandbox: Sandbox) -> None:
    view = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"}
    account = {"kind": "ServiceAccount", "name": "default", "namespace": "default"}
    binding = {"metadata": {"name": "view"}, "roleRef": view, "subjects": [account]}
    await sandbox.client.create(ROLE_BINDINGS, binding, "default")

    namespace, configs, nodes = json.loads(await output(sandbox, sys.executable, "-I", "-c", PROGRAM))

    assert (namespace, configs) == ("default", 200)
    assert nodes == (
        'nodes is forbidden: User "system:serviceaccount:default:default" cannot list resource "nodes" in API group "" '
        "at the cluster scope"
    )


async def test_default_namespace_has_the_service_of_the_api_server(sandbox: Sandbox) -> None:
    service = await sandbox.client.get(SERVICES, "kubernetes", "default")

    assert service["spec"]["clusterIP"] == "10.96.0.1"
    (port,) = service["spec"]["ports"]
    assert port == {
        "name": "https", "protocol": "TCP", "port": 443, "targetPort": sandbox.control_plane.server.port,
    }  # fmt: skip
    assert service["metadata"]["labels"] == {"component": "apiserver", "provider": "kubernetes"}


async def test_containers_have_the_variables_of_the_api_server(sandbox: Sandbox) -> None:
    port = sandbox.control_plane.server.port
    lines = (await output(sandbox, "env", automountServiceAccountToken=False)).splitlines()

    assert sorted(line for line in lines if line.startswith("KUBERNETES_")) == sorted(
        [
            "KUBERNETES_SERVICE_HOST=127.0.0.1",
            f"KUBERNETES_SERVICE_PORT={port}",
            f"KUBERNETES_SERVICE_PORT_HTTPS={port}",
            f"KUBERNETES_PORT=tcp://127.0.0.1:{port}",
            f"KUBERNETES_PORT_{port}_TCP=tcp://127.0.0.1:{port}",
            f"KUBERNETES_PORT_{port}_TCP_PROTO=tcp",
            f"KUBERNETES_PORT_{port}_TCP_PORT={port}",
            f"KUBERNETES_PORT_{port}_TCP_ADDR=127.0.0.1",
        ]
    )


async def test_pod_that_wants_no_token_has_none(sandbox: Sandbox) -> None:
    found = await output(
        sandbox, "sh", "-c", "ls /var/run/secrets/kubernetes.io; env", automountServiceAccountToken=False
    )

    assert "serviceaccount" not in found
    assert "DRA_KIT_SANDBOX_MOUNTS" not in found


async def test_files_of_a_pod_are_removed_with_it(sandbox: Sandbox) -> None:
    await output(sandbox, "true")
    (node,) = sandbox.nodes
    pods = node.directory / "pods"
    assert list(pods.glob("*/volumes/*/*/token"))

    await sandbox.client.delete(PODS, "p", "default")

    await until(lambda: not list(pods.iterdir()))


async def test_volume_of_a_pod_holds_config_maps(sandbox: Sandbox) -> None:
    await sandbox.client.create(CONFIG_MAPS, {"metadata": {"name": "menu"}, "data": {"a": "funghi"}}, "default")
    sources = [{"configMap": {"name": "menu"}}, {"downwardAPI": {"items": [_field("name", "metadata.name")]}}]
    volume = {"name": "menu", "projected": {"sources": sources}}
    mount = {"name": "menu", "mountPath": "/run/menu"}
    command = "cd /run/menu 2>/dev/null || cd ${DRA_KIT_SANDBOX_MOUNTS#*=}; cat a name"
    container = {"name": "c", "image": "x", "command": ["sh", "-c", command], "volumeMounts": [mount]}

    found = await output(sandbox, automountServiceAccountToken=False, volumes=[volume], containers=[container])

    assert found == "funghip"


def _field(path: str, field: str) -> dict[str, Any]:
    return {"path": path, "fieldRef": {"fieldPath": field}}
