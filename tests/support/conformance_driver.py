"""A small driver against the raw protocol: right in everything, but for one fault that its first argument names.

It has nothing of dra-kit but the generated gRPC stubs. With ``none`` it is right. Each other fault has the id of the
check that finds it; ``shared`` is a right driver with one socket for both services.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import signal
import socket
import ssl
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import yaml
from typing_extensions import override

from dra_kit.kubelet.proto import dra_v1_pb2 as v1
from dra_kit.kubelet.proto import dra_v1_pb2_grpc as v1_grpc
from dra_kit.kubelet.proto import dra_v1beta1_pb2 as v1beta1
from dra_kit.kubelet.proto import dra_v1beta1_pb2_grpc as v1beta1_grpc
from dra_kit.kubelet.proto import pluginregistration_v1_pb2 as registration
from dra_kit.kubelet.proto import pluginregistration_v1_pb2_grpc as registration_grpc

DRIVER = "gpu.example.com"
FAULT = sys.argv[1] if __name__ == "__main__" else "none"
GROUP = "/apis/resource.k8s.io/v1"
PLAIN = 4


def has(fault: str) -> bool:
    return fault == FAULT


class Api:
    """The API server of the kubeconfig."""

    def __init__(self) -> None:
        config = yaml.safe_load(Path(os.environ["KUBECONFIG"]).read_text(encoding="utf-8"))
        cluster, self._user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        self._server = cluster["server"]
        authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
        self._tls = ssl.create_default_context(cadata=authority)

    def call(self, path: str, body: Mapping[str, Any] | None = None, method: str = "") -> dict[str, Any]:
        headers = {
            "Authorization": f"Bearer {self._user['token']}", "Content-Type": "application/json", "User-Agent": DRIVER,
        }  # fmt: skip
        data = json.dumps(body).encode() if body else None
        request = urllib.request.Request(self._server + path, data, headers, method=method or None)  # noqa: S310
        with urllib.request.urlopen(request, context=self._tls, timeout=20) as answer:  # noqa: S310
            found: dict[str, Any] = json.load(answer)
        return found


class Refusal(Exception):
    """Why a claim is not prepared."""


class State:
    """What is prepared, on disk, for all processes of the driver; and the CDI files made from it."""

    def __init__(self, directory: Path, cdi: Path) -> None:
        self._file = directory / "state.json"
        self._lock_file = directory / "lock"
        self._cdi = cdi
        self._mutex = threading.Lock()
        self.epochs: dict[str, int] = {}
        self.copy: dict[str, Any] = self._read()  # of a process that does not look again

    @contextmanager
    def locked(self) -> Iterator[dict[str, Any]]:
        with self._mutex, self._lock_file.open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            claims = self.copy if has("P15") else self._read()
            before = json.dumps(claims)
            yield claims
            if json.dumps(claims) != before:
                new = self._file.with_suffix(f".{os.getpid()}")
                new.write_text(json.dumps(claims), encoding="utf-8")
                new.replace(self._file)

    def _read(self) -> dict[str, Any]:
        return json.loads(self._file.read_text(encoding="utf-8")) if self._file.exists() else {}

    def spec(self, uid: str) -> Path:
        return self._cdi / f"{DRIVER}-{uid}.json"

    def write_spec(self, uid: str, devices: list[dict[str, Any]]) -> None:
        temporary = self.temporary(uid)
        kind = "not a kind" if has("P16") else f"{DRIVER}/gpu"
        document = {"cdiVersion": "0.6.0", "kind": kind, "devices": devices}
        temporary.write_text(json.dumps(document), encoding="utf-8")
        temporary.replace(self.spec(uid))

    def temporary(self, uid: str) -> Path:
        return self._cdi / f".{DRIVER}-{uid}.tmp"


class Plugin(v1_grpc.DRAPluginServicer):
    """What the kubelet calls."""

    def __init__(self, api: Api, state: State) -> None:
        self._api = api
        self._state = state
        self._answered: set[str] = set()
        self._stuck: set[str] = set()
        self._known: set[str] = set()
        self._released: set[str] = set()
        self._cooling: dict[str, list[Any]] = {}

    @override
    def NodePrepareResources(self, request: Any, context: Any) -> v1.NodePrepareResourcesResponse:
        answers = {claim.uid: self._answer(claim, context) for claim in request.claims}
        failed = [answer.error for answer in answers.values() if answer.error]
        if has("P6") and failed:
            context.abort(grpc.StatusCode.INTERNAL, failed[0])
        if has("P2"):
            answers["not-requested"] = v1.NodePrepareResourceResponse()
        return v1.NodePrepareResourcesResponse(claims=answers)

    def _answer(self, claim: Any, context: Any) -> v1.NodePrepareResourceResponse:
        self._known.add(claim.uid)
        try:
            devices = self._prepared(claim, context)
        except (Refusal, OSError) as error:
            return v1.NodePrepareResourceResponse(error=str(error))
        if has("P3") and claim.uid in self._answered:
            devices = devices * 2
        self._answered.add(claim.uid)
        return v1.NodePrepareResourceResponse(devices=devices)

    def _prepared(self, claim: Any, context: Any) -> list[v1.Device]:
        marker = Path(self._state.spec(claim.uid).parent.parent, f"{DRIVER}-{claim.uid}.started")
        if has("P11") and claim.uid in self._stuck:
            raise Refusal("another call for this claim is in progress")
        if has("P19"):
            if marker.exists():
                raise Refusal("this claim is in an unknown state")
            marker.touch()
        if has("U6"):
            self._state.temporary(claim.uid).touch()
        epoch = self._state.epochs.get(claim.uid, 0)
        self._stuck.add(claim.uid)
        try:
            found = self._claim(claim)
        finally:
            if has("P19"):
                marker.unlink()
        with self._state.locked() as claims:
            if not has("U5") and (not context.is_active() or self._state.epochs.get(claim.uid, 0) != epoch):
                raise Refusal("the claim was released, or the call has ended")
            if not (has("P11") and not context.is_active()):
                self._stuck.discard(claim.uid)
            new = claim.uid not in claims
            if new:
                claims[claim.uid] = {
                    "name": claim.name,
                    "namespace": claim.namespace,
                    "devices": self._allocated(found),
                }
                self._check_free(claim.uid, claims)
            devices = claims[claim.uid]["devices"]
            if has("P4"):
                for index, item in enumerate(devices):
                    item["cdi"]["name"] = f"{claim.uid}-{os.getpid()}-{index}"
            if new or not has("P5"):
                self._state.write_spec(claim.uid, [item["cdi"] for item in devices])
        return [self._device(claim.uid, item) for item in devices]

    def _claim(self, claim: Any) -> dict[str, Any]:
        try:
            found = self._api.call(f"{GROUP}/namespaces/{claim.namespace}/resourceclaims/{claim.name}")
        except urllib.error.HTTPError as error:
            raise Refusal(f"claim {claim.name}: {error}") from None
        if found["metadata"]["uid"] != claim.uid and not has("P7"):
            raise Refusal(f"claim {claim.name} has another UID")
        if "allocation" not in found.get("status", {}):
            raise Refusal(f"claim {claim.name} is not allocated")
        return found

    def _allocated(self, claim: Mapping[str, Any]) -> list[dict[str, Any]]:
        allocation = claim["status"]["allocation"]["devices"]
        devices = []
        for index, result in enumerate(allocation["results"]):
            if result["driver"] != DRIVER and not has("P9"):
                continue
            request, _, subrequest = result["request"].partition("/")
            mode = self._mode(request, result["request"], allocation.get("config", []))
            name = f"{claim['metadata']['uid']}-{index}"
            env = [f"GPU_{index}_MODE={mode}", *([] if has("P17") else [f"GPU_{index}={result['device']}"])]
            devices.append({
                "request": result["request"] if has("P8") and subrequest else request,
                "pool": result["pool"],
                "device": result["device"],
                "share": result.get("shareID"),
                "admin": bool(result.get("adminAccess")) and not has("P12"),
                "cdi": {"name": name, "containerEdits": {"env": env}},
            })  # fmt: skip
        return devices

    @staticmethod
    def _mode(parent: str, request: str, config: list[Mapping[str, Any]]) -> str:
        modes = [
            entry["opaque"]["parameters"]["mode"]
            for entry in config
            if "opaque" in entry and entry["opaque"]["driver"] == DRIVER
            if not entry.get("requests") or {parent, request} & set(entry["requests"])
        ]
        return (modes[0] if has("P14") else modes[-1]) if modes else "default"

    def _check_free(self, uid: str, claims: dict[str, Any]) -> None:
        def used(item: Mapping[str, Any]) -> tuple[Any, ...]:
            return item["pool"], item["device"], item["share"]

        held = {
            used(item) for other in claims if other != uid for item in claims[other]["devices"] if not item["admin"]
        }
        held |= {used(item) for items in self._cooling.values() for item in items}
        for item in claims[uid]["devices"]:
            if used(item) in held and not item["admin"] and not has("P10"):
                del claims[uid]
                raise Refusal(f"device {item['device']} is in use by another claim")

    @staticmethod
    def _device(uid: str, item: Mapping[str, Any]) -> v1.Device:
        device = v1.Device(
            request_names=[item["request"]],
            pool_name="elsewhere" if has("P18") else item["pool"],
            device_name=item["device"],
            cdi_device_ids=[f"{DRIVER}/gpu={item['cdi']['name']}"],
        )
        if item["share"] and not has("P13"):
            device.share_id = item["share"]
        return device

    @override
    def NodeUnprepareResources(self, request: Any, context: Any) -> v1.NodeUnprepareResourcesResponse:
        answers = {
            claim.uid: v1.NodeUnprepareResourceResponse(error=self._unprepared(claim)) for claim in request.claims
        }
        return v1.NodeUnprepareResourcesResponse(claims=answers)

    def _unprepared(self, claim: Any) -> str:
        uid = claim.uid
        with self._state.locked() as claims:
            self._state.epochs[uid] = self._state.epochs.get(uid, 0) + 1
            self._answered.discard(uid)
            if has("U1") and uid in claims:
                try:
                    self._claim(claim)
                except Refusal as error:
                    return str(error)
            if has("U2") and uid not in claims and uid not in self._known:
                return "the claim is unknown"
            if has("U3") and uid in self._released:
                return "the claim was unprepared before"
            if has("U4") and uid not in self._known:
                return ""
            self._cooling.pop(uid, None)
            self._released.add(uid)
            gone = claims.pop(uid, None)
            if has("U8") and gone is not None:
                self._cooling[uid] = gone["devices"]
            self._state.spec(uid).unlink(missing_ok=True)
            if not has("U6"):
                self._state.temporary(uid).unlink(missing_ok=True)
        return ""

    def reconcile(self) -> None:
        """Release claims whose objects are gone."""
        with self._state.locked() as claims:
            known = {uid: dict(item) for uid, item in claims.items()}
        for uid, item in known.items():
            path = f"{GROUP}/namespaces/{item['namespace']}/resourceclaims/{item['name']}"
            try:
                gone = self._api.call(path)["metadata"]["uid"] != uid
            except urllib.error.HTTPError as error:
                gone = error.code == 404
            if gone and not has("U7"):
                self._unprepared(v1.Claim(namespace=item["namespace"], name=item["name"], uid=uid))


class OlderPlugin(v1beta1_grpc.DRAPluginServicer):
    """The same service by its older name."""

    def __init__(self, plugin: Plugin) -> None:
        self._plugin = plugin

    @override
    def NodePrepareResources(self, request: Any, context: Any) -> v1beta1.NodePrepareResourcesResponse:
        if has("P1"):
            context.abort(grpc.StatusCode.UNIMPLEMENTED, "not in this version")
        newer = v1.NodePrepareResourcesRequest.FromString(request.SerializeToString())
        answer = self._plugin.NodePrepareResources(newer, context)
        for entry in answer.claims.values():
            for device in entry.devices:
                device.ClearField("share_id")
        return v1beta1.NodePrepareResourcesResponse.FromString(answer.SerializeToString())

    @override
    def NodeUnprepareResources(self, request: Any, context: Any) -> v1beta1.NodeUnprepareResourcesResponse:
        newer = v1.NodeUnprepareResourcesRequest.FromString(request.SerializeToString())
        answer = self._plugin.NodeUnprepareResources(newer, context)
        return v1beta1.NodeUnprepareResourcesResponse.FromString(answer.SerializeToString())


class Registration(registration_grpc.RegistrationServicer):
    """How the kubelet finds the plugin."""

    def __init__(self, api: Api, endpoint: str) -> None:
        self._api = api
        self._endpoint = endpoint
        self._notified = 0

    @override
    def GetInfo(self, request: Any, context: Any) -> registration.PluginInfo:
        if has("R3"):
            self._api.call("/version")
        versions = ["v1.DRAPlugin", "v1beta1.DRAPlugin"]
        return registration.PluginInfo(
            type="DevicePlugin" if has("R1") else "DRAPlugin",
            name=DRIVER,
            endpoint=self._endpoint,
            supported_versions=versions[::-1] if has("R2") else versions,
        )

    @override
    def NotifyRegistrationStatus(self, request: Any, context: Any) -> registration.RegistrationStatusResponse:
        self._notified += 1
        if has("R4") and self._notified > 1:
            context.abort(grpc.StatusCode.ALREADY_EXISTS, "registered before")
        if not request.plugin_registered and not has("R5"):
            print("registration rejected:", request.error, flush=True)
        return registration.RegistrationStatusResponse()


class Publisher:
    """The slices of this node, kept as they should be."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._node = os.environ["NODE_NAME"]

    def devices(self) -> list[dict[str, Any]]:
        plain = [{"name": f"gpu-{index}", "attributes": {"index": {"int": index}}} for index in range(PLAIN)]
        policy = {"default": "10Gi", "validRange": {"min": "10Gi"}}
        capacity = {"memory": {"value": "80Gi", "requestPolicy": policy}}
        shared = {"name": "shared-0", "allowMultipleAllocations": True, "capacity": capacity}
        return [*plain, shared]

    def publish(self) -> None:
        """Create or repair the slice, if it differs."""
        owner = self._api.call(f"/api/v1/nodes/{self._node}")
        spec = {
            "driver": DRIVER,
            "nodeName": self._node,
            "pool": {"name": self._node, "generation": 1, "resourceSliceCount": 1},
            "devices": self.devices(),
        }
        metadata = {
            "name": f"{self._node}-{DRIVER}",
            "ownerReferences": [
                {"apiVersion": "v1", "kind": "Node", "name": self._node, "uid": owner["metadata"]["uid"]},
            ],
        }  # fmt: skip
        body = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": metadata, "spec": spec}
        try:
            found = self._api.call(f"{GROUP}/resourceslices/{metadata['name']}")
        except urllib.error.HTTPError as error:
            if error.code != 404:
                raise
            self._api.call(f"{GROUP}/resourceslices", body)
            return
        if found["spec"] != spec:
            found["spec"] = spec
            self._api.call(f"{GROUP}/resourceslices/{metadata['name']}", found, "PUT")


def work(publisher: Publisher, plugin: Plugin) -> None:
    """Publish and reconcile, again and again."""
    while True:
        try:
            publisher.publish()
            plugin.reconcile()
        except (OSError, LookupError) as error:
            print("API server:", error, flush=True)
        time.sleep(0.2)


def listening(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as found:
        try:
            found.connect(str(path))
        except OSError:
            return False
    return True


def serve(path: Path, *parts: Any) -> grpc.Server:
    if has("R6") and path.exists():
        sys.exit(f"{path}: address already in use")
    server = grpc.server(ThreadPoolExecutor(16))
    for part in parts:
        match part:
            case Plugin():
                v1_grpc.add_DRAPluginServicer_to_server(part, server)
            case OlderPlugin():
                v1beta1_grpc.add_DRAPluginServicer_to_server(part, server)
            case Registration():
                registration_grpc.add_RegistrationServicer_to_server(part, server)
    server.add_insecure_port(f"unix:{path}")
    server.start()
    return server


def main() -> None:
    uid = os.environ.get("POD_UID", "")
    directory = Path(os.environ["KUBELET_PLUGINS_DIRECTORY_PATH"], DRIVER)
    directory.mkdir(parents=True, exist_ok=True)
    registry = Path(os.environ["KUBELET_REGISTRAR_DIRECTORY_PATH"])
    endpoint = directory / (f"dra-{uid}{'-' * 60 * has('R8')}.sock" if uid else "dra.sock")
    registrar = registry / (f"{DRIVER}-{uid}-reg.sock" if uid else f"{DRIVER}-reg.sock")
    for stale in (*directory.glob("*.sock"), *registry.glob(f"{DRIVER}*.sock")):
        if not listening(stale) and not has("R6"):
            stale.unlink(missing_ok=True)
    api = Api()
    state = State(directory, Path(os.environ["CDI_ROOT"]))
    if not has("U6"):
        for left in Path(os.environ["CDI_ROOT"]).glob(f".{DRIVER}-*.tmp"):
            left.unlink(missing_ok=True)
    plugin = Plugin(api, state)
    parts = (plugin, OlderPlugin(plugin))
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    servers = []
    if FAULT in {"shared", "R10"}:
        servers.append(serve(registrar, Registration(api, ""), *(parts if FAULT == "shared" else ())))
    elif has("R9"):
        servers.append(serve(registrar, Registration(api, str(endpoint))))
        time.sleep(1.0)
        servers.append(serve(endpoint, *parts))
    else:
        servers.append(serve(endpoint, *parts))
        servers.append(serve(registrar, Registration(api, str(endpoint))))
    threading.Thread(target=work, args=(Publisher(api), plugin), daemon=True).start()
    stopping.wait()
    if has("R7"):
        os._exit(0)
    for server in servers[::-1]:
        server.stop(1.0).wait()
    for path in (registrar, endpoint):
        path.unlink(missing_ok=True)
    os._exit(0)


if __name__ == "__main__":
    main()
