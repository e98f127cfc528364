"""A cluster for stories: an API server that only stores, and a node whose behaviour a test writes down."""

from __future__ import annotations

import copy
import json
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias

from aiohttp import web

from dra_kit.client.api import Client
from dra_kit.client.credentials import Connection, Credentials
from dra_kit.errors import ConfigurationError
from dra_kit.sandbox.stories.facts import ResourceFacts

DRIVER = "dra.pizza"
Object: TypeAlias = dict[str, Any]


_DISCOVERY = {
    "/api/v1": [
        {"name": "pods", "kind": "Pod", "namespaced": True},
        {"name": "pods/log", "kind": "Pod", "namespaced": True},
        {"name": "configmaps", "kind": "ConfigMap", "namespaced": True},
    ],
    "/apis/resource.k8s.io/v1": [
        {"name": "resourceclaims", "kind": "ResourceClaim", "namespaced": True},
        {"name": "deviceclasses", "kind": "DeviceClass", "namespaced": False},
    ],
    "/apis/scheduling.k8s.io/v1beta1": [{"name": "podgroups", "kind": "PodGroup", "namespaced": True}],
}


class Control:
    """See :class:`dra_kit.sandbox.stories.facts.DriverControl`; it notes what was done, in ``done``."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.awaited = ""
        self.refused = ""
        self.texts: dict[str, str] = {}
        self.replaced: list[tuple[str, str]] = []
        self.injected: list[tuple[str, str, str | None]] = []

    async def restart(self) -> None:
        self._note("restart")

    async def in_process(self, wanted: bool, /) -> None:
        self._note(f"in a {'process' if wanted else 'thread'}")

    async def kill(self) -> None:
        self._note("kill")

    async def start(self) -> None:
        self._note("start")

    async def kill_after(self, step: str) -> None:
        self._note(f"kill after {step}")

    async def upgrade(self, target: object, /) -> None:
        self._note(f"upgrade to {target}")

    async def rollback(self) -> None:
        self._note("rollback")

    async def reboot(self, lost: Sequence[str] = ()) -> None:
        self._note(f"reboot, losing {list(lost)}")

    async def restore(self) -> None:
        self._note("restore")

    async def files(self, place: str) -> Sequence[str] | None:
        """``far``: it cannot be looked at."""
        if place == "far":
            return None
        if place not in self.texts:
            raise ConfigurationError(f"the driver has no setting {place!r}")
        return [self.texts[place]]

    async def replace_file(self, setting: str, text: str) -> str:
        former = self.texts[setting]
        self.texts[setting] = text
        self.replaced.append((setting, text))
        return former

    async def inject_health(self, device: str, reason: str, message: str | None) -> None:
        if not reason.startswith("burnt"):
            raise ConfigurationError(f"{reason} is not in the policy")
        self.injected.append((device, reason, message))

    def _note(self, what: str) -> None:
        if self.refused:
            raise ConfigurationError(self.refused)
        self.done.append(what)


class Cluster:
    """Objects by plural, namespace and name; ``on_create`` plays controllers, scheduler and kubelet.

    Attributes:
        created: all that clients have created, also what is deleted.
        on_create: called with every stored object, which it may change.
        on_created: called with every stored object after that, for what else happens.
        on_delete: called with every deleted object.
        on_list: called with the plural before all objects of it are listed.
        stuck: names of objects that ignore their deletion.
        refusals: answers to the next creations, as (status, message).
        node: what the node keeps.
        containers: (environment, output) of each container, by pod and container.
        refused: permanent errors of the driver, by claim; with its namespace if that is not the story's.
        controlled: what was done to the driver.
        controls: the same of each driver, by name.
    """

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str, str], Object] = {}
        self.created: dict[tuple[str, str, str], Object] = {}
        self.on_create: Callable[[Object], None] = lambda _: None
        self.on_created: Callable[[Object], object] = lambda _: None
        self.on_delete: Callable[[Object], None] = lambda _: None
        self.on_list: Callable[[str], None] = lambda _: None
        self.stuck: set[str] = set()
        self.refusals: list[tuple[int, str]] = []
        self.node: set[str] = set()
        self.containers: dict[tuple[str, str], tuple[dict[str, str], str]] = {}
        self.refused: dict[str, str] = {}
        self.controlled = Control()
        self.controls = {DRIVER: self.controlled}
        self._client: Client | None = None

    # --- what dra_kit.sandbox.stories.facts.Cluster asks for

    @property
    def client(self) -> Client:
        assert self._client is not None
        return self._client

    @property
    def drivers(self) -> Sequence[str]:
        return list(self.controls)

    @property
    def kubeconfig(self) -> Path:
        return Path("kubeconfig")

    async def environment(self, namespace: str, pod: str, container: str) -> Mapping[str, str]:
        return self.containers.get((pod, container), ({}, ""))[0]

    async def output(self, namespace: str, pod: str, container: str) -> str:
        return self.containers.get((pod, container), ({}, ""))[1]

    async def device_nodes(self, namespace: str, pod: str, container: str) -> Mapping[str, str] | None:
        return {}

    async def mounts(self, namespace: str, pod: str, container: str) -> Mapping[str, str] | None:
        return {}

    async def resources(self, namespace: str, pod: str, container: str) -> ResourceFacts:
        return ResourceFacts()

    async def interfaces(self, namespace: str, pod: str, containers: Sequence[str]) -> Sequence[str] | None:
        return ()

    async def node_state(self) -> Iterable[str]:
        return set(self.node)

    def control(self, driver: str = "") -> Control:
        if not driver and len(self.controls) > 1:
            raise ConfigurationError("several drivers run here; say which")
        return self.controls[driver or DRIVER]

    def refusal(self, namespace: str, claim: str) -> str:
        return self.refused.get(f"{namespace}/{claim}") or self.refused.get(claim, "")

    def forget_refusals(self, namespace: str) -> None:
        for claim in [name for name in self.refused if "/" not in name or name.startswith(f"{namespace}/")]:
            del self.refused[claim]

    # --- for tests

    def add(self, plural: str, body: Object, namespace: str = "") -> None:
        """Store an object as it is."""
        self.objects[plural, namespace, body["metadata"]["name"]] = body

    def of(self, plural: str) -> list[Object]:
        """All objects of a plural."""
        return [body for (kind, _, _), body in self.objects.items() if kind == plural]

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Cluster]:
        """The API server, as long as the context lasts."""
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._handle)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        credentials = Credentials(Connection(f"http://127.0.0.1:{runner.addresses[0][1]}"))
        async with Client(credentials, user_agent="test") as client:
            self._client = client
            yield self
        await runner.cleanup()

    async def _handle(self, request: web.Request) -> web.Response:
        if request.path == "/version":
            return web.json_response({"major": "1", "minor": "37"})
        if request.path in _DISCOVERY:
            return web.json_response({"resources": _DISCOVERY[request.path]})
        parts = request.path.strip("/").split("/")
        parts = parts[2:] if parts[0] == "api" else parts[3:]
        namespace = ""
        if parts[0] == "namespaces" and len(parts) > 2:
            namespace, parts = parts[1], parts[2:]
        plural, name = parts[0], parts[1] if len(parts) > 1 else ""
        match request.method:
            case "POST":
                return self._create(plural, namespace, json.loads(await request.text()))
            case "DELETE":
                return self._delete(plural, namespace, name)
        if not name:
            self.on_list(plural)
            found = [
                body for (kind, place, _), body in self.objects.items() if kind == plural and namespace in {"", place}
            ]
            return web.json_response({"kind": "List", "metadata": {"resourceVersion": "1"}, "items": found})
        found_one = self.objects.get((plural, namespace, name))
        if found_one:
            return web.json_response(found_one)
        return _status(404, "NotFound", f"{plural} {name} not found", name)

    def _create(self, plural: str, namespace: str, body: Object) -> web.Response:
        if self.refusals and plural != "namespaces":
            code, message = self.refusals.pop(0)
            return _status(code, "Forbidden" if code == 403 else "Invalid", message)
        key = (plural, namespace, body["metadata"]["name"])
        if key in self.objects:
            return _status(409, "AlreadyExists", f"{plural} {key[2]} already exists")
        stored = copy.deepcopy(body)
        stored["metadata"]["uid"] = str(uuid.uuid4())
        self.objects[key] = self.created[key] = stored
        self.on_create(stored)
        self.on_created(stored)
        return web.json_response(stored, status=201)

    def _delete(self, plural: str, namespace: str, name: str) -> web.Response:
        body = self.objects.get((plural, namespace, name))
        if body is None:
            return _status(404, "NotFound", f"{plural} {name} not found", name)
        if name not in self.stuck:
            del self.objects[plural, namespace, name]
            self.on_delete(body)
        return web.json_response(body)


def _status(code: int, reason: str, message: str, name: str = "") -> web.Response:
    body = {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "code": code,
        "reason": reason,
        "message": message,
        "details": {"name": name},
    }
    return web.json_response(body, status=code)


def runs(
    pod: Object, *, phase: str = "Running", exit_code: int | None = None, message: str = "", started: bool = True
) -> None:
    """Give a pod the status that a kubelet would."""
    state: Object = {"running": {}} if exit_code is None else {"terminated": {"exitCode": exit_code}}
    pod["status"] = {"phase": phase, "containerStatuses": []}
    if started:
        names = [container["name"] for container in pod["spec"]["containers"]]
        pod["status"]["containerStatuses"] = [{"name": name, "state": state} for name in names]
    if message:
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
        pod["status"]["conditions"] = [condition]


def allocated(claim: Object, *devices: str) -> None:
    """Give a claim the status that a scheduler would."""
    results = [{"request": "pizza", "driver": DRIVER, "pool": "node-a", "device": device} for device in devices]
    claim["status"] = {
        "allocation": {"devices": {"results": results}},
        "reservedFor": [{"resource": "pods", "name": "guest", "uid": "1"}],
    }
