"""A node for tests: an embedded API server, a kubelet with processes for containers, a driver behind real sockets."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from dra_kit.apiserver.server import ApiServer
from dra_kit.client.api import Client
from dra_kit.client.credentials import Connection, Credentials
from dra_kit.client.resources import CONFIG_MAPS, EVENTS, NAMESPACES, PODS, RESOURCE_CLAIMS
from dra_kit.errors import NotFound, PermanentError
from dra_kit.kubelet.plugin_server import KubeletDevice
from dra_kit.kubernetes.release import Release
from dra_kit.kubernetes.resource.objects import ClaimReference
from dra_kit.sandbox.containers.process_runtime import ProcessRuntime
from dra_kit.sandbox.kubelet.environment import NodeShape
from dra_kit.sandbox.kubelet.node import NodeKubelet
from dra_kit.sandbox.records import Record
from tests.unit.sandbox.cluster.kubelet.driver import DRIVER, Driver
from tests.unit.sandbox.cluster.kubelet.pods import SLEEPER, Object, pod
from tests.unit.sandbox.cluster.kubelet.polling import until

NAMESPACE = "kitchen"
NODE = "node-a"


class Oven(Driver):
    """A driver that writes a CDI spec for each claim.

    Attributes:
        calls: ``prepare`` or ``unprepare`` with the names of the claims, in the order of the calls.
        failing: an error for each claim name; both calls answer with it.
    """

    def __init__(self, kubelet_dir: Path, cdi_dir: Path, pod_uid: str | None = None) -> None:
        super().__init__(kubelet_dir, pod_uid)
        self.calls: list[tuple[str, ...]] = []
        self.failing: dict[str, str] = {}
        self.cdi_dir = cdi_dir

    async def prepare(self, claims: Sequence[ClaimReference]) -> Mapping[str, Sequence[KubeletDevice] | Exception]:
        self.calls.append(("prepare", *(claim.name for claim in claims)))
        return {claim.uid: self._prepare(claim) for claim in claims}

    async def unprepare(self, claims: Sequence[ClaimReference]) -> Mapping[str, Exception | None]:
        self.calls.append(("unprepare", *(claim.name for claim in claims)))
        return {
            claim.uid: PermanentError(self.failing[claim.name]) if claim.name in self.failing else None
            for claim in claims
        }

    def _prepare(self, claim: ClaimReference) -> Sequence[KubeletDevice] | Exception:
        if claim.name in self.failing:
            return PermanentError(self.failing[claim.name])
        name = f"c-{claim.uid}"
        spec = {
            "cdiVersion": "0.5.0",
            "kind": f"{DRIVER}/claim",
            "devices": [
                {
                    "name": name,
                    "containerEdits": {
                        "env": [f"PIZZA_{claim.name.upper().replace('-', '_')}=funghi"],
                        "mounts": [{"hostPath": "/oven", "containerPath": "/mnt/oven"}],
                    },
                }
            ],
        }
        (self.cdi_dir / f"{claim.uid}.json").write_text(json.dumps(spec))
        return [KubeletDevice(("pizza",), "pool", "pizza-0", (f"{DRIVER}/claim={name}",))]


class Node:
    """Everything, for one test.

    Attributes:
        client: of the API server.
        kubelet: runs.
        runtime: of its containers.
        driver: runs until a test stops it.
        records: what the kubelet recorded.
    """

    def __init__(
        self, api: ApiServer, client: Client, kubelet: NodeKubelet, runtime: ProcessRuntime, driver: Oven
    ) -> None:
        self.api = api
        self.client = client
        self.kubelet = kubelet
        self.runtime = runtime
        self.driver = driver
        self.records: list[Record] = []

    async def claim(self, name: str) -> Object:
        """A claim that is not allocated yet."""
        spec = {"devices": {"requests": [{"name": "pizza", "exactly": {"deviceClassName": "pizza"}}]}}
        return await self.client.create(RESOURCE_CLAIMS, {"metadata": {"name": name}, "spec": spec}, NAMESPACE)

    async def order(self, name: str, *, driver: str = DRIVER) -> Object:
        """A claim that a scheduler allocated."""
        await self.claim(name)
        return await self.allocate(name, driver=driver)

    async def allocate(self, name: str, *, driver: str = DRIVER, skip: Sequence[str] = ()) -> Object:
        claim = await self.client.get(RESOURCE_CLAIMS, name, NAMESPACE)
        result: Object = {"request": "pizza", "driver": driver, "pool": NODE, "device": "pizza-0"}
        if skip:
            result["skipNodeOperations"] = list(skip)
        claim["status"] = {"allocation": {"devices": {"results": [result]}}}
        return await self.client.update(RESOURCE_CLAIMS, claim, subresource="status")

    async def reserve(self, claim: str, *pods: Object) -> None:
        found = await self.client.get(RESOURCE_CLAIMS, claim, NAMESPACE)
        found["status"]["reservedFor"] = [
            {"resource": "pods", "name": item["metadata"]["name"], "uid": item["metadata"]["uid"]} for item in pods
        ]
        await self.client.update(RESOURCE_CLAIMS, found, subresource="status")

    async def start(self, of: Object, *claims: str, reserved: bool = True) -> Object:
        """Creates a pod whose containers use claims, reserves them, and binds it to the node."""
        made = await self.created(of, *claims)
        for name in claims if reserved else ():
            await self.reserve(name, made)
        await self.bind(made)
        return made

    async def created(self, of: Object, *claims: str) -> Object:
        """A pod that is not bound yet."""
        body = copy.deepcopy(of)
        for name in ("uid", "resourceVersion"):
            del body["metadata"][name]
        del body["spec"]["nodeName"]
        body.pop("status")
        if claims:
            body["spec"]["resourceClaims"] = [{"name": name, "resourceClaimName": name} for name in claims]
            for item in body["spec"]["containers"]:
                item.setdefault("resources", {}).setdefault("claims", [{"name": name} for name in claims])
        return await self.client.create(PODS, body, body["metadata"]["namespace"])

    async def run(self, of: Object | None = None) -> Object:
        """Orders lunch and starts a pod with it; the pod once it runs."""
        await self.order("lunch")
        await self.start(pod(SLEEPER) if of is None else of, "lunch")
        return await self.phase("Running")

    async def set_status(self, of: Object, changes: Object) -> None:
        """Changes the status of a pod, as a scheduler does."""
        name = of["metadata"]["name"]
        await self.client.patch(PODS, name, {"status": changes}, NAMESPACE, subresource="status")

    async def bind(self, of: Object) -> None:
        name, namespace = of["metadata"]["name"], of["metadata"]["namespace"]
        target = {"apiVersion": "v1", "kind": "Node", "name": NODE}
        await self.client.create(PODS, {"metadata": {"name": name}, "target": target}, namespace, subresource="binding")

    async def pod(self, name: str = "guest") -> Object:
        return await self.client.get(PODS, name, NAMESPACE)

    async def until(self, condition: Callable[[Object], object], name: str = "guest") -> Object:
        """The pod once its object is so."""
        found: Object = {}
        try:
            async with asyncio.timeout(60):
                while True:
                    found = await self.pod(name)
                    if condition(found):
                        return found
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise AssertionError(f"{name} is {json.dumps(found.get('status'), indent=1)}") from None

    async def leave(self, name: str = "guest", grace: int | None = None) -> None:
        """Deletes a pod and waits until it is gone."""
        await self.delete(name, grace)
        await self.gone(name)

    async def gone(self, name: str = "guest") -> None:
        async with asyncio.timeout(60):
            while True:
                try:
                    await self.pod(name)
                except NotFound:
                    return
                await asyncio.sleep(0.02)

    async def phase(self, wanted: str, name: str = "guest") -> Object:
        return await self.until(lambda item: item["status"].get("phase") == wanted, name)

    async def delete(self, name: str = "guest", grace: int | None = None) -> None:
        await self.client.delete(PODS, name, NAMESPACE, grace_period_seconds=grace)

    async def events(self, *reasons: str) -> list[tuple[str, str]]:
        """The kubelet's Events, as (reason, note), once there is one of each reason."""
        async with asyncio.timeout(60):
            while True:
                found = sorted(
                    (await self.client.list(EVENTS, NAMESPACE)).items, key=lambda item: str(item["eventTime"])
                )
                texts = [(item["reason"], item["note"]) for item in found if item["reportingController"] == "kubelet"]
                if set(reasons) <= {reason for reason, _ in texts}:
                    return texts
                await asyncio.sleep(0.02)

    async def is_so(self, condition: Callable[[], object]) -> None:
        await until(condition)

    def output(self, container: str = "eater", name: str = "guest") -> str:
        report = self.runtime.report(NAMESPACE, name, container)
        return report.log.text if report else ""


@asynccontextmanager
async def node(
    kubelet_dir: Path, *, time_scale: float = 100.0, labels: Mapping[str, str] | None = None
) -> AsyncIterator[Node]:
    """A node in its own cluster."""
    cdi_dir = kubelet_dir / "cdi"
    cdi_dir.mkdir()
    records: list[Record] = []
    async with AsyncExitStack() as stack:
        api = await stack.enter_async_context(ApiServer())
        client = Client(Credentials(Connection(api.url)), user_agent="kubelet/test")
        await stack.enter_async_context(client)
        await client.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
        # a controller manager would make it
        await client.create(CONFIG_MAPS, {"metadata": {"name": "kube-root-ca.crt"}, "data": {"ca.crt": ""}}, NAMESPACE)
        runtime = await stack.enter_async_context(
            ProcessRuntime(nri_socket=kubelet_dir / "nri.sock", node_directory=kubelet_dir)
        )
        kubelet = NodeKubelet(
            client,
            node_name=NODE,
            kubelet_dir=kubelet_dir,
            runtime=runtime,
            cdi_dirs=[cdi_dir],
            time_scale=time_scale,
            release=Release.of(),
            shape=NodeShape(labels=labels or {}),
            observer=records.append,
        )
        await stack.enter_async_context(kubelet)
        driver = await stack.enter_async_context(Oven(kubelet_dir, cdi_dir))
        await kubelet.plugins.wait_for_plugin(DRIVER)
        made = Node(api, client, kubelet, runtime, driver)
        made.records = records
        yield made
