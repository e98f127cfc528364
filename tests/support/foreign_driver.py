"""A driver that has nothing of dra-kit but the generated gRPC stubs: it reads its environment, as others' drivers do.

Run as a program; it serves until it is killed.
"""

from __future__ import annotations

import base64
import json
import os
import ssl
import threading
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import yaml
from typing_extensions import override

from dra_kit.kubelet.proto import dra_v1_pb2 as dra
from dra_kit.kubelet.proto import pluginregistration_v1_pb2 as registration
from dra_kit.kubelet.proto.dra_v1_pb2_grpc import DRAPluginServicer, add_DRAPluginServicer_to_server
from dra_kit.kubelet.proto.pluginregistration_v1_pb2_grpc import (
    RegistrationServicer,
    add_RegistrationServicer_to_server,
)

DRIVER = "gpu.example.com"


class Api:
    """The API server of the kubeconfig."""

    def __init__(self, kubeconfig: Path) -> None:
        config = yaml.safe_load(kubeconfig.read_text(encoding="utf-8"))
        cluster, self._user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        self._server = cluster["server"]
        authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
        self._tls = ssl.create_default_context(cadata=authority)

    def call(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """GET, or POST where there is a body."""
        headers = {"Authorization": f"Bearer {self._user['token']}", "Content-Type": "application/json"}
        data = json.dumps(body).encode() if body else None
        request = urllib.request.Request(self._server + path, data, headers)  # noqa: S310 - https
        with urllib.request.urlopen(request, context=self._tls) as answer:  # noqa: S310 - likewise
            found: dict[str, Any] = json.load(answer)
        return found


class Plugin(DRAPluginServicer, RegistrationServicer):
    """What the kubelet calls."""

    def __init__(self, api: Api, endpoint: Path) -> None:
        self._api = api
        self._endpoint = endpoint

    @override
    def GetInfo(self, request: Any, context: Any) -> registration.PluginInfo:
        versions = ["v1.DRAPlugin"]
        return registration.PluginInfo(
            type="DRAPlugin", name=DRIVER, endpoint=str(self._endpoint), supported_versions=versions
        )

    @override
    def NotifyRegistrationStatus(self, request: Any, context: Any) -> registration.RegistrationStatusResponse:
        return registration.RegistrationStatusResponse()

    @override
    def NodePrepareResources(self, request: Any, context: Any) -> dra.NodePrepareResourcesResponse:
        return dra.NodePrepareResourcesResponse(claims={claim.uid: self._prepared(claim) for claim in request.claims})

    @override
    def NodeUnprepareResources(self, request: Any, context: Any) -> dra.NodeUnprepareResourcesResponse:
        for claim in request.claims:
            self._spec(claim.uid).unlink(missing_ok=True)
        answers = {claim.uid: dra.NodeUnprepareResourceResponse() for claim in request.claims}
        return dra.NodeUnprepareResourcesResponse(claims=answers)

    def _prepared(self, claim: Any) -> dra.NodePrepareResourceResponse:
        path = f"/apis/resource.k8s.io/v1/namespaces/{claim.namespace}/resourceclaims/{claim.name}"
        results = self._api.call(path)["status"]["allocation"]["devices"]["results"]
        devices = [{"name": f"{claim.uid}-{item['device']}", "containerEdits": _edits(item)} for item in results]
        spec = {"cdiVersion": "0.6.0", "kind": f"{DRIVER}/gpu", "devices": devices}
        self._spec(claim.uid).write_text(json.dumps(spec), encoding="utf-8")
        return dra.NodePrepareResourceResponse(
            devices=[
                dra.Device(
                    request_names=[item["request"]],
                    pool_name=item["pool"],
                    device_name=item["device"],
                    cdi_device_ids=[f"{DRIVER}/gpu={claim.uid}-{item['device']}"],
                )
                for item in results
            ]
        )

    @staticmethod
    def _spec(uid: str) -> Path:
        return Path(os.environ["CDI_ROOT"], f"{DRIVER}-{uid}.json")


def _edits(result: dict[str, Any]) -> dict[str, Any]:
    return {"env": [f"GPU_DEVICE={result['device']}"]}


def main() -> None:
    api = Api(Path(os.environ["KUBECONFIG"]))
    node = os.environ["NODE_NAME"]
    sockets = Path(os.environ["KUBELET_PLUGINS_DIRECTORY_PATH"], DRIVER)
    sockets.mkdir(parents=True)
    plugin = Plugin(api, sockets / "dra.sock")
    server = grpc.server(ThreadPoolExecutor())
    add_DRAPluginServicer_to_server(plugin, server)
    add_RegistrationServicer_to_server(plugin, server)
    server.add_insecure_port(f"unix://{sockets / 'dra.sock'}")
    server.add_insecure_port(f"unix://{Path(os.environ['KUBELET_REGISTRAR_DIRECTORY_PATH'], f'{DRIVER}-reg.sock')}")
    server.start()
    spec = {
        "driver": DRIVER,
        "nodeName": node,
        "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": "gpu-0"}],
    }
    kind = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice"}
    api.call(
        "/apis/resource.k8s.io/v1/resourceslices", {**kind, "metadata": {"name": f"{node}-{DRIVER}"}, "spec": spec}
    )
    threading.Event().wait()


if __name__ == "__main__":
    main()
