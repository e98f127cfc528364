"""A small driver against the raw protocol: right in everything, but for one fault that its first argument names.

It has nothing of dra-kit but the generated gRPC stubs. With ``none`` it is right. Each other fault has the id of the
check that finds it; ``shared`` is a right driver with one socket for both services, and ``cached`` one that misses the
deletion of a slice right after it was written, as Go's helper did. In a real cluster, some faults are found by other
checks: ``tests/cluster/test_conformance.py`` says by which. With the variable SLOW, each request to the API server
takes so many seconds longer; with WAITS, it waits for each answer so long, and
with ROUND so long between two rounds of its publisher.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import grpc
import yaml
from typing_extensions import override

from dra_kit.kubelet.proto import dra_health_v1_pb2 as health_v1
from dra_kit.kubelet.proto import dra_health_v1_pb2_grpc as health_v1_grpc
from dra_kit.kubelet.proto import dra_health_v1alpha1_pb2 as health_v1alpha1
from dra_kit.kubelet.proto import dra_health_v1alpha1_pb2_grpc as health_v1alpha1_grpc
from dra_kit.kubelet.proto import dra_v1_pb2 as v1
from dra_kit.kubelet.proto import dra_v1_pb2_grpc as v1_grpc
from dra_kit.kubelet.proto import dra_v1beta1_pb2 as v1beta1
from dra_kit.kubelet.proto import dra_v1beta1_pb2_grpc as v1beta1_grpc
from dra_kit.kubelet.proto import pluginregistration_v1_pb2 as registration
from dra_kit.kubelet.proto import pluginregistration_v1_pb2_grpc as registration_grpc

DRIVER = "gpu.example.com"
FAULT = sys.argv[1] if __name__ == "__main__" else "none"
PLAIN = 4
HEALTHY = FAULT not in {"shared", "H4"}
LEASE = 30
SLOW = float(os.environ.get("SLOW", "0"))
WAITS = float(os.environ.get("WAITS", "60"))
ROUND = float(os.environ.get("ROUND", "0.2"))
CACHED_SECONDS = 30.0
FORGOTTEN_SECONDS = 60.0  # S5: after an update
KEPT_SECONDS = 30.0  # longer than a pod may take to end
TAINT = {"key": f"{DRIVER}/hot", "effect": "NoSchedule"}
METADATA = "/var/run/kubernetes.io/dra-device-attributes"


def has(fault: str) -> bool:
    return fault == FAULT


def has_ended(context: Any) -> bool:
    """Whether the caller does not wait any more; the server may see a deadline later than the client."""
    return not context.is_active() or context.time_remaining() == 0


class Api:
    """The API server of the kubeconfig."""

    def __init__(self) -> None:
        config = yaml.safe_load(Path(os.environ["KUBECONFIG"]).read_text(encoding="utf-8"))
        cluster, self._user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        self._server = cluster["server"]
        authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
        self._tls = ssl.create_default_context(cadata=authority)
        if "client-certificate-data" in self._user:
            with NamedTemporaryFile() as file:  # it has mode 0600
                for item in ("client-certificate-data", "client-key-data"):
                    file.write(base64.b64decode(self._user[item]))
                file.flush()
                self._tls.load_cert_chain(file.name)
        self._version = ""

    @property
    def version(self) -> str:
        """The version of resource.k8s.io that the API server serves."""
        if not self._version:
            self._version = "v1"
            if not has("A1"):
                served = [item["version"] for item in self.call("/apis/resource.k8s.io")["versions"]]
                self._version = next(version for version in ("v1", "v1beta2") if version in served)
        return self._version

    def resource(self, path: str) -> str:
        """Return a path in resource.k8s.io."""
        return f"/apis/resource.k8s.io/{self.version}/{path}"

    def call(self, path: str, body: Mapping[str, Any] | None = None, method: str = "") -> dict[str, Any]:
        headers = {"Content-Type": "application/json", "User-Agent": DRIVER}
        if "token" in self._user:
            headers["Authorization"] = f"Bearer {self._user['token']}"
        data = json.dumps(body).encode() if body else None
        time.sleep(SLOW)
        request = urllib.request.Request(self._server + path, data, headers, method=method or None)  # noqa: S310
        with urllib.request.urlopen(request, context=self._tls, timeout=WAITS) as answer:  # noqa: S310
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
        self.generations: dict[str, int] = {}
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

    def metadata(self, uid: str, request: str) -> Path:
        return self._file.parent / "metadata" / uid / f"{request}.json"

    def write_metadata(self, uid: str, claim: Mapping[str, Any]) -> None:
        """Write the metadata files of a claim."""
        number = self.generations.setdefault(uid, 1)
        for request in {item["request"].partition("/")[0] for item in claim["devices"]}:
            devices = [
                {"driver": DRIVER, "pool": item["pool"], "name": item["device"]}
                for item in claim["devices"]
                if item["request"].partition("/")[0] == request
            ]
            identity = {"name": claim["name"], "namespace": claim["namespace"], "uid": uid}
            document = {
                "kind": "DeviceMetadata",
                "apiVersion": f"metadata.resource.k8s.io/{'v1alpha1' if has('M2') else 'v1beta1'}",
                "metadata": {**identity, "generation": 1 if has("M3") else number},
                "requests": [{"name": request, "devices": devices}],
                "updates": number,
            }
            path = self.metadata(uid, request)
            path.parent.mkdir(parents=True, exist_ok=True)
            if has("M4"):
                path.write_text("", encoding="utf-8")
                time.sleep(0.2)
                path.write_text(json.dumps(document), encoding="utf-8")
                continue
            temporary = path.with_suffix(".tmp")
            temporary.write_text(json.dumps(document), encoding="utf-8")
            temporary.replace(path)

    def remove_metadata(self, uid: str) -> None:
        self.generations.pop(uid, None)
        if not has("M5"):
            shutil.rmtree(self.metadata(uid, "any").parent, ignore_errors=True)

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
        self._asked: dict[str, float] = {}  # when a claim was to be released first

    @override
    def NodePrepareResources(self, request: Any, context: Any) -> v1.NodePrepareResourcesResponse:
        answers = {claim.uid: self._answer(claim, context) for claim in request.claims}
        failed = [answer.error for answer in answers.values() if answer.error]
        if has("P6") and failed:
            context.abort(grpc.StatusCode.INTERNAL, failed[0])
        if has("P2"):
            answers["not-requested"] = v1.NodePrepareResourceResponse()
        return v1.NodePrepareResourcesResponse(claims=answers)

    def _report(self, claim: Any) -> None:
        """Write status.devices of a claim."""
        path = self._api.resource(f"namespaces/{claim.namespace}/resourceclaims/{claim.name}")
        try:
            found = self._api.call(path)
            others = [entry for entry in found["status"].get("devices", []) if entry["driver"] != DRIVER]
            own = [
                {key: result[key] for key in ("driver", "pool", "device", "shareID") if key in result}
                for result in found["status"]["allocation"]["devices"]["results"]
                if result["driver"] == DRIVER
            ]
            found["status"]["devices"] = own if has("A3") else [*others, *own]
            self._api.call(f"{path}/status", found, "PUT")
        except urllib.error.HTTPError as error:
            print(f"status.devices of claim {claim.name}: {error.read().decode()}", flush=True)
        except (OSError, LookupError) as error:
            print(f"status.devices of claim {claim.name}: {error}", flush=True)

    def _answer(self, claim: Any, context: Any) -> v1.NodePrepareResourceResponse:
        if has("C4"):
            return v1.NodePrepareResourceResponse(error="no device is ready")
        self._known.add(claim.uid)
        try:
            devices = self._prepared(claim, context)
        except (Refusal, OSError) as error:
            return v1.NodePrepareResourceResponse(error=str(error))
        if has("P3") and claim.uid in self._answered:
            devices = devices * 2
        self._answered.add(claim.uid)
        if devices and not has_ended(context):
            self._report(claim)
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
            if not has("U5") and (has_ended(context) or self._state.epochs.get(claim.uid, 0) != epoch):
                raise Refusal("the claim was released, or the call has ended")
            if not (has("P11") and has_ended(context)):
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
            if new or not (has("P5") or has("L4")):
                self._state.write_spec(claim.uid, [item["cdi"] for item in devices])
            self._state.write_metadata(claim.uid, claims[claim.uid])
        return [self._device(claim.uid, item) for item in devices]

    def _claim(self, claim: Any) -> dict[str, Any]:
        try:
            found = self._api.call(self._api.resource(f"namespaces/{claim.namespace}/resourceclaims/{claim.name}"))
        except urllib.error.HTTPError as error:
            raise Refusal(f"claim {claim.name}: {error}") from None
        if found["metadata"]["uid"] != claim.uid and not has("P7"):
            raise Refusal(f"claim {claim.name} has another UID")
        if "allocation" not in found.get("status", {}):
            raise Refusal(f"claim {claim.name} is not allocated")
        return found

    def _allocated(self, claim: Mapping[str, Any]) -> list[dict[str, Any]]:
        allocation = claim["status"]["allocation"]["devices"]
        devices: list[dict[str, Any]] = []
        for index, result in enumerate(allocation["results"]):
            if result["driver"] != DRIVER and not has("P9"):
                continue
            request, _, subrequest = result["request"].partition("/")
            mode = self._mode(request, result["request"], allocation.get("config", []))
            name = f"{claim['metadata']['uid']}-{index}"
            env = [f"GPU_{index}_MODE={mode}", *([] if has("P17") else [f"GPU_{index}={result['device']}"])]
            edits: dict[str, Any] = {"env": env}
            if request not in {item["request"].partition("/")[0] for item in devices}:
                edits["mounts"] = [self._metadata_mount(claim, request)]
            devices.append({
                "request": result["request"] if has("P8") and subrequest else request,
                "pool": result["pool"],
                "device": result["device"],
                "share": result.get("shareID"),
                "admin": bool(result.get("adminAccess")) and not has("P12"),
                "cdi": {"name": name, "containerEdits": edits},
            })  # fmt: skip
        return devices

    def _metadata_mount(self, claim: Mapping[str, Any], request: str) -> dict[str, Any]:
        metadata = claim["metadata"]
        pod_claim = metadata.get("annotations", {}).get("resource.kubernetes.io/pod-claim-name")
        origin = f"resourceclaimtemplates/{pod_claim}" if pod_claim else f"resourceclaims/{metadata['name']}"
        folder = "/var/run/elsewhere" if has("M1") else METADATA
        return {
            "hostPath": str(self._state.metadata(metadata["uid"], request)),
            "containerPath": f"{folder}/{origin}/{request}/{DRIVER}-metadata.json",
            "options": ["ro", "bind"],
        }

    def update_metadata(self) -> None:
        """Give the metadata of all claims another generation."""
        with self._state.locked() as claims:
            for uid, claim in claims.items():
                self._state.generations[uid] = self._state.generations.get(uid, 1) + 1
                self._state.write_metadata(uid, claim)

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
        if has("C6") and time.monotonic() - self._asked.setdefault(uid, time.monotonic()) < KEPT_SECONDS:
            return "the device is busy"
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
            self._state.remove_metadata(uid)
            if not has("U6"):
                self._state.temporary(uid).unlink(missing_ok=True)
        return ""

    def reconcile(self) -> None:
        """Release claims whose objects are gone."""
        with self._state.locked() as claims:
            known = {uid: dict(item) for uid, item in claims.items()}
        for uid, item in known.items():
            path = self._api.resource(f"namespaces/{item['namespace']}/resourceclaims/{item['name']}")
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
        if HEALTHY:
            versions += ["v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth"]
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
        self._accepted: dict[str, Any] = {}  # what the API server made of the specs
        self._updated: dict[str, float] = {}
        self._lost: set[str] = set()
        self._stored: dict[str, float] = {}
        self._writes = 0
        self._created: set[str] = set()

    def devices(self) -> list[dict[str, Any]]:
        if "NO_DEVICES" in os.environ:
            return []
        plain: list[dict[str, Any]] = [
            {"name": f"gpu-{index}", "attributes": {"index": {"int": index}}} for index in range(PLAIN)
        ]
        policy = {"default": "10Gi", "validRange": {"min": "10Gi"}}
        capacity = {"memory": {"value": "80Gi", "requestPolicy": policy}}
        shared = {"name": "shared-0", "allowMultipleAllocations": True, "capacity": capacity}
        devices = [*plain, shared, {"name": "tainted-0", "taints": [TAINT]}]
        return [device | {"taints": [TAINT]} for device in devices] if has("S15") else devices

    def slices(self) -> dict[str, dict[str, Any]]:
        """Return the specs by name: two pools, one of them with counters."""
        common: dict[str, Any] = {"driver": DRIVER, "nodeName": self._node}
        pool: dict[str, Any] = {"name": self._node, "generation": 1, "resourceSliceCount": 1}
        found = {"": {**common, "pool": pool, "devices": self.devices()}}
        if has("S6") and "NO_DEVICES" not in os.environ:
            found["-stale"] = {**common, "pool": {**pool, "generation": 0}, "devices": [{"name": "old"}]}
        if "NO_DEVICES" not in os.environ:
            parts = {"name": f"{self._node}-parts", "generation": 1, "resourceSliceCount": 2}
            counters = [{"name": "card", "counters": {"memory": {"value": "80Gi"}}}]
            used = [{"counterSet": "card", "counters": {"memory": {"value": "40Gi"}}}]
            effect: dict[str, Any] = (
                {"taints": [{"key": f"{DRIVER}/hot", "effect": "NoSchedule"}]} if has("S15") else {}
            )
            devices = [{"name": f"gpu-part-{index}", "consumesCounters": used, **effect} for index in range(2)]
            found["-counters"] = {**common, "pool": parts, "sharedCounters": counters}
            found["-parts"] = {**common, "pool": parts, "devices": devices}
        return {f"{self._node}-{DRIVER}{name}": spec for name, spec in found.items()}

    def publish(self) -> None:
        """Create or repair the slices that differ, and delete those that are not there any more."""
        wanted = self.slices()
        for item in self._api.call(self._api.resource("resourceslices"))["items"]:
            own = item["spec"]["driver"] == DRIVER and item["spec"].get("nodeName") == self._node
            if own and item["metadata"]["name"] not in wanted:
                self._api.call(self._api.resource(f"resourceslices/{item['metadata']['name']}"), method="DELETE")
        for name, spec in wanted.items():
            try:
                self._publish(name, spec)
            except urllib.error.HTTPError as error:
                print(f"slice {name}: {error.read().decode()}", flush=True)
                if has("S10"):
                    return

    def _publish(self, name: str, spec: dict[str, Any]) -> None:
        try:
            found = self._api.call(self._api.resource(f"resourceslices/{name}"))
        except urllib.error.HTTPError as error:
            if error.code != 404:
                raise
            self._create(name, spec)
            return
        if has("cached"):
            self._lost.discard(name)
        empty = not spec.get("devices")
        again = not empty and name not in self._accepted
        rewrite = (has("S2") and again) or (has("S12") and empty and "-counters" not in name)
        if self._same(name, found["spec"], spec) and not rewrite:
            return
        if has("S4") and name in self._created:
            return
        self._writes += 1
        old = {device["name"]: device.get("taints", []) for device in found["spec"].get("devices", [])}
        new = json.loads(json.dumps(spec))
        for device in new.get("devices", []):
            for taint, before in zip(device.get("taints", []), old.get(device["name"], []), strict=False):
                taint["timeAdded"] = f"2020-01-01T00:00:{self._writes:02}Z" if has("S11") else before["timeAdded"]
        if rewrite:
            found["metadata"]["labels"] = {"writes": str(self._writes)}
        found["spec"] = new
        self._store(name, spec, self._api.call(self._api.resource(f"resourceslices/{name}"), found, "PUT"))
        self._updated[name] = time.monotonic()

    def _create(self, name: str, spec: dict[str, Any]) -> None:
        if has("S5") and time.monotonic() - self._updated.get(name, -FORGOTTEN_SECONDS) < FORGOTTEN_SECONDS:
            self._lost.add(name)
        if has("cached") and time.monotonic() - self._stored.get(name, -CACHED_SECONDS) < CACHED_SECONDS:
            self._lost.add(name)
        if name in self._lost:
            return
        owner = self._api.call(f"/api/v1/nodes/{self._node}")
        reference = {"apiVersion": "v1", "kind": "Node", "name": self._node, "uid": owner["metadata"]["uid"]}
        metadata = {"name": name, "ownerReferences": [] if has("S1") else [reference]}
        body = {
            "apiVersion": f"resource.k8s.io/{self._api.version}",
            "kind": "ResourceSlice",
            "metadata": metadata,
            "spec": spec,
        }
        self._store(name, spec, self._api.call(self._api.resource("resourceslices"), body))

    def _store(self, name: str, spec: dict[str, Any], answer: dict[str, Any]) -> None:
        self._created.add(name)
        self._stored[name] = time.monotonic()
        made = _plain(answer["spec"])
        if made == spec:
            self._accepted.pop(name, None)
        else:
            print(f"slice {name}: the API server dropped fields: {made} of {spec}", flush=True)
            if not (has("S9") and spec.get("devices")):
                self._accepted[name] = spec, made

    def _same(self, name: str, found: dict[str, Any], spec: dict[str, Any]) -> bool:
        wanted, made = self._accepted.get(name, (spec, spec))
        return _plain(found) == (made if wanted == spec else spec)

    def first(self) -> None:
        """Do what a driver with a fault does once, at its start."""
        spec = self.slices()[f"{self._node}-{DRIVER}"]
        pool = {"name": "big", "generation": 1, "resourceSliceCount": 1}
        many = {**spec, "pool": pool, "devices": [{"name": f"big-{index}"} for index in range(129)]}
        counters = [{"name": "card", "counters": {"memory": {"value": "80Gi"}}}]
        for fault, wrong in (("S7", many), ("S8", {**spec, "pool": pool, "sharedCounters": counters})):
            if has(fault):
                with suppress(OSError):
                    self._create("big", wrong)
        if has("L3") and "POD_UID" in os.environ:
            with suppress(OSError):
                self.remove()
        if has("S3"):
            with suppress(OSError):
                found = self._api.call(self._api.resource(f"resourceslices/{self._node}-{DRIVER}"))
                found["metadata"]["labels"] = {"process": str(os.getpid())}
                self._api.call(self._api.resource(f"resourceslices/{self._node}-{DRIVER}"), found, "PUT")
        if has("S13"):
            for item in self._api.call(self._api.resource("resourceslices"))["items"]:
                if item["spec"]["driver"] == DRIVER and item["spec"].get("nodeName") != self._node:
                    self._api.call(self._api.resource(f"resourceslices/{item['metadata']['name']}"), method="DELETE")

    def remove(self) -> None:
        """Delete the slices."""
        for name in self.slices():
            self._api.call(self._api.resource(f"resourceslices/{name}"), method="DELETE")

    def after(self, parent: int, ended: Path) -> None:
        """Write a slice when the driver's process has gone that got SIGTERM."""
        while Path(f"/proc/{parent}").exists():
            time.sleep(0.02)
        time.sleep(0.2)  # until all have seen the end
        if ended.exists():
            self._api.call(self._api.resource(f"resourceslices/{self._node}-{DRIVER}"), method="DELETE")


def _plain(spec: dict[str, Any]) -> dict[str, Any]:
    """Return a spec without the times of taints."""
    found: dict[str, Any] = json.loads(json.dumps(spec))
    for device in found.get("devices", []):
        for taint in device.get("taints", []):
            taint.pop("timeAdded", None)
    return found


class Health:
    """The health of all devices, by both versions of the service."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self._streams = 0
        self._only_one = threading.Lock()

    def reports(self, context: Any, messages: Any) -> Iterator[Any]:
        """Yield a report each second."""
        if has("H4"):
            context.abort(grpc.StatusCode.INTERNAL, "no health service")
        self._streams += 1
        first = self._streams > 1 and has("H6")
        while has("H5") and not self._only_one.acquire(timeout=0.1):
            if not context.is_active():
                return
        try:
            while context.is_active():
                yield messages.NodeWatchResourcesResponse(devices=[] if first else self._devices(messages))
                first = False
                for _ in range(100000 if has("H2") else 10):
                    if context.is_active():
                        time.sleep(0.1)
        finally:
            if has("H5"):
                self._only_one.release()

    def _devices(self, messages: Any) -> list[Any]:
        places = [
            (spec["pool"]["name"], device["name"])
            for spec in self._publisher.slices().values()
            for device in spec.get("devices", [])
        ]
        status = messages.UNHEALTHY if has("H3") and messages is health_v1alpha1 else messages.HEALTHY
        return [
            messages.DeviceHealth(
                device=messages.DeviceIdentifier(pool_name=pool, device_name=name), health=status,
                last_updated_time=int(time.time()), health_check_timeout_seconds=LEASE,
            )
            for pool, name in places[has("H1") :]
        ]  # fmt: skip


class NewerHealth(health_v1_grpc.DRAResourceHealthServicer):
    """The health service in v1."""

    def __init__(self, health: Health) -> None:
        self._health = health

    @override
    def NodeWatchResources(self, request: Any, context: Any) -> Iterator[Any]:
        return self._health.reports(context, health_v1)


class OlderHealth(health_v1alpha1_grpc.DRAResourceHealthServicer):
    """The health service in v1alpha1."""

    def __init__(self, health: Health) -> None:
        self._health = health

    @override
    def NodeWatchResources(self, request: Any, context: Any) -> Iterator[Any]:
        return self._health.reports(context, health_v1alpha1)


def work(publisher: Publisher, plugin: Plugin) -> None:
    """Publish and reconcile, again and again."""
    publisher.first()
    while True:
        try:
            publisher.publish()
            plugin.reconcile()
            plugin.update_metadata()
        except (OSError, LookupError) as error:
            print("API server:", error, flush=True)
        time.sleep(ROUND)


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
            case NewerHealth():
                health_v1_grpc.add_DRAResourceHealthServicer_to_server(part, server)
            case OlderHealth():
                health_v1alpha1_grpc.add_DRAResourceHealthServicer_to_server(part, server)
            case Registration():
                registration_grpc.add_RegistrationServicer_to_server(part, server)
    server.add_insecure_port(f"unix:{path}")
    server.start()
    return server


def start_servers(api: Api, registrar: Path, endpoint: Path, parts: list[Any]) -> list[grpc.Server]:
    """Serve the services, in the right order."""
    if FAULT in {"shared", "R10"}:
        return [serve(registrar, Registration(api, ""), *(parts if FAULT == "shared" else ()))]
    registration_part = Registration(api, str(endpoint))
    if has("R9"):
        servers = [serve(registrar, registration_part)]
        time.sleep(5.0)
        return [*servers, serve(endpoint, *parts)]
    return [serve(endpoint, *parts), serve(registrar, registration_part)]


def remove_leftovers(directory: Path, registry: Path, cdi: Path) -> None:
    """Remove sockets that no process serves, and temporary files."""
    for stale in (*directory.glob("*.sock"), *registry.glob(f"{DRIVER}*.sock")):
        if not listening(stale) and not has("R6"):
            stale.unlink(missing_ok=True)
    for left in cdi.glob(f".{DRIVER}-*.tmp"):
        if not has("U6"):
            left.unlink(missing_ok=True)


def end(publisher: Publisher, servers: list[grpc.Server], sockets: list[Path], ended: Path) -> None:
    """Do what SIGTERM asks for."""
    ended.touch()
    if has("L1") and "POD_UID" not in os.environ:
        publisher.remove()
    if not has("R7"):
        for server in servers[::-1]:
            server.stop(1.0).wait()
        for path in sockets:
            path.unlink(missing_ok=True)
    os._exit(0)


def main() -> None:
    uid = os.environ.get("POD_UID", "")
    directory = Path(os.environ["KUBELET_PLUGINS_DIRECTORY_PATH"], DRIVER)
    directory.mkdir(parents=True, exist_ok=True)
    registry, cdi = Path(os.environ["KUBELET_REGISTRAR_DIRECTORY_PATH"]), Path(os.environ["CDI_ROOT"])
    cdi.mkdir(parents=True, exist_ok=True)  # a node without any other driver has none
    endpoint = directory / (f"dra-{uid}{'-' * 60 * has('R8')}.sock" if uid else "dra.sock")
    registrar = registry / (f"{DRIVER}-{uid}-reg.sock" if uid else f"{DRIVER}-reg.sock")
    ended = directory / "ended"
    api = Api()
    publisher = Publisher(api)
    if FAULT == "late":
        publisher.after(int(sys.argv[2]), ended)
        return
    ended.unlink(missing_ok=True)
    if has("L2") and any(path.is_dir() for path in registry.iterdir()):
        threading.Event().wait()
    if has("S14"):
        words = [sys.executable, "-m", "tests.support.conformance_driver", "late", str(os.getpid())]
        subprocess.Popen(words, start_new_session=True)
    remove_leftovers(directory, registry, cdi)
    plugin = Plugin(api, State(directory, cdi))
    health = Health(publisher)
    parts: list[Any] = [plugin, OlderPlugin(plugin)]
    if HEALTHY or has("H4"):
        parts += [NewerHealth(health), OlderHealth(health)]
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    servers = start_servers(api, registrar, endpoint, parts)
    threading.Thread(target=work, args=(publisher, plugin), daemon=True).start()
    stopping.wait()
    end(publisher, servers, [registrar, endpoint], ended)


if __name__ == "__main__":
    main()
