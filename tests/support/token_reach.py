"""What the tokens of a driver's roles reach: statements of docs/reference/tokens.md, each tried by requests.

The same requests go to the sandbox's API server and to real ones. What would store something is a dry run: the server
authorizes, admits and validates, and stores nothing.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp

from dra_kit.client.credentials import Credentials

DRIVER: Final = "kitchen.pizza.example"
ANOTHER: Final = "other.example"
HERE, THERE, DOTTED = "worker-1", "worker-10", "worker-1.example.com"
"""Nodes: one whose token is stolen, and two whose names begin with that one's."""
LABELS: Final = {"app.kubernetes.io/component": "chef"}
MERGE: Final = "application/merge-patch+json"
APPLY: Final = "application/apply-patch+yaml"
Object = dict[str, Any]

_WRITES: Final = ["get", "create", "patch", "delete", "list"]
_RIGHTS: Final = [
    {"apiGroups": [""], "resources": ["pods", "pods/ephemeralcontainers", "configmaps"], "verbs": _WRITES},
    {"apiGroups": [""], "resources": ["pods/exec", "serviceaccounts/token"], "verbs": ["get", "create"]},
    {"apiGroups": [""], "resources": ["secrets"], "verbs": ["create", "patch"]},
    {"apiGroups": ["apps"], "resources": ["deployments", "daemonsets"], "verbs": _WRITES},
    {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": _WRITES},
]
_STRICT: Final[Object] = {
    "driverName": DRIVER,
    "node": {
        "effectPods": {"labels": LABELS},
        "namespacedRules": {"{{ .Release.Namespace }}": _RIGHTS},
        "extraRules": [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["patch"]}],
    },
    "controller": {"clusterPools": True, "binding": True, "taintRules": True, "poolNames": ["warehouse"]},
}
_LISTED: Final[Object] = {
    **_STRICT,
    "imagePullSecrets": [{"name": "registry"}],
    "node": {
        **_STRICT["node"],
        "effectPods": {
            "labels": LABELS,
            "allowed": {
                "serviceAccounts": ["chef"],
                "secrets": ["recipe"],
                "configMaps": ['{{ printf "%s-menu" "listed" }}'],
                "imagePullSecrets": ["mirror"],
                "hostPaths": ["/run/oven"],
                "hostNamespaces": ["hostPID", "hostNetwork"],
                "privileged": True,
                "metadata": ["team"],
            },
        },
        "ownObjectsOnly": False,
        "poolNames": "any",
    },
    "controller": {"clusterPools": True},
}
RELEASES: Final[Mapping[str, Object]] = {
    "plain": {"driverName": DRIVER, "controller": {"binding": False}},
    "strict": _STRICT,
    "listed": _LISTED,
}
"""Values of the releases whose tokens are tried: what every driver has; all rights with nothing listed; all listed."""


@dataclass(frozen=True)
class Request:
    """A request to the API server."""

    method: str
    path: str
    body: Object | None = None
    media: str = "application/json"


@dataclass(frozen=True)
class Place:
    """Where requests go.

    Attributes:
        namespace: of the release.
        release: its name, with which those of its accounts begin.
        taint_rules: the version in which DeviceTaintRules are served; empty where they are not.
        stored: what the administrator has stored, by path, as the server has it.
    """

    namespace: str
    release: str
    taint_rules: str = ""
    stored: dict[str, Object] = field(default_factory=dict)

    def core(self, plural: str, name: str = "") -> str:
        """The path of an object of the core group in the release's namespace."""
        return join_path("/api/v1", plural, name, self.namespace)


@dataclass(frozen=True, eq=False)
class Attempt:
    """A request with a role's token, and what the API server must answer.

    Attributes:
        statement: the first words of the one of docs/reference/tokens.md that it is about.
        name: of the attempt.
        who: the role and, behind a slash, the node of its token.
        make: the request.
        refusal: a pattern that the refusal has; empty where the request is allowed.
        release: of ``RELEASES``.
        real: whether only real API servers serve what it is about.
    """

    statement: str
    name: str
    who: str
    make: Callable[[Place], Request]
    refusal: str = ""
    release: str = "strict"
    real: bool = False

    def is_answered(self, answer: str) -> bool:
        """Whether an answer, empty where it was allowed, is what it must be."""
        return re.search(self.refusal, answer) is not None if self.refusal else not answer

    @property
    def title(self) -> str:
        """Whose attempt it is, and at what; unique."""
        return f"{self.who.replace('/', '-').rstrip('-')}-{'may' if not self.refusal else 'may-not'}-{self.name}"


class Server:
    """An API server as the holder of some credentials sees it.

    Args:
        credentials: address and identity.
    """

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials

    async def send(self, request: Request, *, dry_run: bool = True) -> tuple[int, Object]:
        """Send a request; the status and the body of its answer."""
        authorization = await self._credentials.authorization()
        headers = {"Content-Type": request.media} | ({"Authorization": authorization} if authorization else {})
        # a connection cannot be one
        stores = request.method != "GET" and "/exec?" not in request.path
        query = {"dryRun": "All"} if dry_run and stores else {}
        query |= {"fieldManager": "tests", "force": "true"} if request.media == APPLY else {}
        url = self._credentials.connection.server + request.path
        async with (
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=self._credentials.ssl or True)) as session,
            session.request(request.method, url, json=request.body, headers=headers, params=query) as answer,
        ):
            return answer.status, await answer.json(content_type=None)

    async def refusal(self, attempt: Attempt, place: Place) -> str:
        """Try it, and return the error message; empty if it was allowed."""
        status, body = await self.send(attempt.make(place))
        return "" if status < 300 else f"{status}: {body.get('message')}"


async def make_nodes(admin: Server) -> None:
    """Store the nodes; no kubelet is on them."""
    spec = {"unschedulable": True, "taints": [{"key": "example.com/none", "effect": "NoExecute"}]}
    for name in (HERE, THERE, DOTTED):
        node = _object("v1", "Node", {"name": name}, spec=spec)
        status, answer = await admin.send(Request("POST", "/api/v1/nodes", node), dry_run=False)
        assert status < 300, answer


async def remove_nodes(admin: Server) -> None:
    """Remove them."""
    for name in (HERE, THERE, DOTTED):
        await admin.send(Request("DELETE", f"/api/v1/nodes/{name}"), dry_run=False)


async def prepare(admin: Server, namespace: str, release: str) -> Place:
    """Store what is there before a token is stolen; the nodes are there already."""
    _, groups = await admin.send(Request("GET", "/apis/resource.k8s.io"))
    served = [item["version"] for item in groups["versions"]]
    place = Place(namespace, release, await _taint_rules_version(admin, served))
    _, nodes = await admin.send(Request("GET", "/api/v1/nodes"))
    uids = {item["metadata"]["name"]: item["metadata"]["uid"] for item in nodes["items"]}
    for path, body in _world(place, uids):
        status, stored = await admin.send(Request("POST", path, body), dry_run=False)
        if status == 409:
            status, stored = await admin.send(Request("GET", f"{path}/{body['metadata']['name']}"))
        assert status < 300, f"{path}: {stored}"
        place.stored[f"{path}/{body['metadata']['name']}"] = stored
    for node in (HERE, THERE):
        path = f"{claims_path(place)}/on-{node}"
        patch = Request("PATCH", f"{path}/status", {"status": _allocated(node)}, MERGE)
        status, stored = await admin.send(patch, dry_run=False)
        assert status < 300, stored
        place.stored[path] = stored
    return place


async def token_of(admin: Server, place: Place, who: str) -> str:
    """Request the token of a role; with a node it is bound to that, as those are that a kubelet requests."""
    role, node = who.split("/")
    spec: Object = {"audiences": [], "expirationSeconds": 3600}
    if node:
        _, found = await admin.send(Request("GET", f"/api/v1/nodes/{node}"))
        spec["boundObjectRef"] = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": found["metadata"]["uid"]}
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
    path = f"{place.core('serviceaccounts', f'{place.release}-{role}')}/token"
    status, answer = await admin.send(Request("POST", path, body), dry_run=False)
    assert status < 300, answer
    return str(answer["status"]["token"])


async def reload(admin: Server, place: Place) -> None:
    """Read again what controllers of the server write to: a replacement names the version that it replaces."""
    for path in [path for path in place.stored if "/devicetaintrules/" in path]:
        _, place.stored[path] = await admin.send(Request("GET", path))


async def remove(admin: Server, place: Place) -> None:
    """Remove what is not in the release's namespace, and its pods, which no kubelet ends."""
    for path in place.stored:
        if "/pods/" in path or place.namespace not in path:
            await admin.send(Request("DELETE", path, {"gracePeriodSeconds": 0}), dry_run=False)


async def _taint_rules_version(admin: Server, served: Sequence[str]) -> str:
    for version in served:
        _, found = await admin.send(Request("GET", f"/apis/resource.k8s.io/{version}"))
        if any(item["name"] == "devicetaintrules" for item in found.get("resources", ())):
            return version
    return ""


def join_path(root: str, plural: str, name: str = "", namespace: str = "") -> str:
    return "/".join([root, *(["namespaces", namespace] if namespace else []), plural, *([name] if name else [])])


def slices_path(name: str = "", version: str = "v1") -> str:
    return join_path(f"/apis/resource.k8s.io/{version}", "resourceslices", name)


def claims_path(place: Place, name: str = "") -> str:
    return join_path("/apis/resource.k8s.io/v1", "resourceclaims", name, place.namespace)


def rules_path(place: Place, name: str = "") -> str:
    return join_path(f"/apis/resource.k8s.io/{place.taint_rules}", "devicetaintrules", name)


def _object(api_version: str, kind: str, metadata: Object, **fields: Any) -> Object:
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **fields}


def slice_object(
    name: str,
    *,
    driver: str = DRIVER,
    pool: str = HERE,
    version: str = "v1",
    device: Object | None = None,
    **scope: Any,
) -> Object:
    spec = {
        "driver": driver,
        "pool": {"name": pool, "generation": 1, "resourceSliceCount": 1},
        "devices": [device or {"name": "d", **({"basic": {}} if version == "v1beta1" else {})}],
        **(scope or {"nodeName": HERE}),
    }
    return _object(f"resource.k8s.io/{version}", "ResourceSlice", {"name": name}, spec=spec)


def pod_object(
    name: str = "oven", *, node: str = HERE, labels: Object = LABELS, metadata: Object | None = None, **spec: Any
) -> Object:
    container = {"name": "c", "image": "busybox:stable", **spec.pop("container", {})}
    whole = {
        "nodeName": node,
        "automountServiceAccountToken": False,
        "tolerations": [{"operator": "Exists"}],
        "containers": [container],
        **spec,
    }
    spec = {key: value for key, value in whole.items() if value is not None}
    return _object("v1", "Pod", {"name": name, "labels": labels, **(metadata or {})}, spec=spec)


def owned_by(node: str, uid: str = "6c1a0a52-52f1-4bb0-9a93-3f1c2f4f6d10") -> list[Object]:
    """The owner references of an object that a node owns."""
    return [{"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid}]


def config_map(name: str, *owners: Object) -> Object:
    """A ConfigMap."""
    return _object("v1", "ConfigMap", {"name": name, "ownerReferences": list(owners)})


def secret_object(kind: str) -> Object:
    """A Secret of a type that the node owns."""
    annotations = {"kubernetes.io/service-account.name": "boss"}
    metadata = {"name": "x", "ownerReferences": owned_by(HERE), "annotations": annotations}
    return _object("v1", "Secret", metadata, type=kind)


def workload_object(kind: str) -> Object:
    template = {"metadata": {"labels": LABELS}, "spec": pod_object()["spec"]}
    spec: Object = {"selector": {"matchLabels": LABELS}, "template": template}
    if kind == "Job":
        del spec["selector"]
        template["spec"]["restartPolicy"] = "Never"
    group = "batch" if kind == "Job" else "apps"
    return _object(f"{group}/v1", kind, {"name": "w", "ownerReferences": owned_by(HERE)}, spec=spec)


def claim_object(name: str) -> Object:
    requests = [{"name": f"r{n}", "exactly": {"deviceClassName": "pizza"}} for n in range(2)]
    return _object("resource.k8s.io/v1", "ResourceClaim", {"name": name}, spec={"devices": {"requests": requests}})


def _allocated(node: str) -> Object:
    results = [
        {"request": f"r{n}", "driver": driver, "pool": node, "device": "d"}
        for n, driver in enumerate((DRIVER, ANOTHER))
    ]
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    return {
        "allocation": {"devices": {"results": results}, "nodeSelector": {"nodeSelectorTerms": [term]}},
        "devices": [entry_of(node, ANOTHER, 1)],
    }


def entry_of(pool: str, driver: str = DRIVER, value: int = 2) -> Object:
    return {"driver": driver, "pool": pool, "device": "d", "data": {"a": value}}


def rule_object(place: Place, name: str, driver: str = DRIVER, owner: str = DRIVER) -> Object:
    metadata = {"name": name, "labels": {"dra-kit/driver": owner}}
    spec = {"deviceSelector": {"driver": driver}, "taint": {"key": "a.example/b", "effect": "NoSchedule"}}
    return _object(f"resource.k8s.io/{place.taint_rules}", "DeviceTaintRule", metadata, spec=spec)


def event_object(namespace: str) -> Object:
    return {
        "apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": "e", "namespace": namespace},
        "eventTime": "2026-01-01T00:00:00.000000Z", "action": "Prepare", "reason": "Prepared", "type": "Normal",
        "reportingController": DRIVER, "reportingInstance": "i", "note": "n",
        "regarding": {"apiVersion": "v1", "kind": "Pod", "name": "p", "namespace": namespace},
    }  # fmt: skip


def _world(place: Place, uids: Mapping[str, str]) -> list[tuple[str, Object]]:
    secrets = _object("v1", "Secret", {"name": "webhook-key"}, stringData={"tls.key": "k"})
    accounts = [_object("v1", "ServiceAccount", {"name": name}) for name in ("default", "chef", "boss")]
    pods = [
        pod_object("own"),
        pod_object("theirs", node=THERE),
        pod_object("stranger", labels={"app": "x"}),
        # of an administrator, with the labels of effects and the account of another role
        pod_object("borrowed", serviceAccountName="boss", automountServiceAccountToken=True),
        pod_object("annotated", metadata={"annotations": {"cni.example/address": "192.0.2.7"}}),
    ]
    slices = [
        slice_object("own"),
        slice_object("theirs", pool=THERE, nodeName=THERE),
        slice_object("foreign", driver=ANOTHER),
        slice_object("misnamed", pool=f"{HERE}-card-0"),
        slice_object("cluster", pool="warehouse", allNodes=True),
    ]
    rules = [rule_object(place, "own"), rule_object(place, "foreign", ANOTHER, ANOTHER)] if place.taint_rules else []
    return [
        *((place.core("serviceaccounts"), body) for body in accounts),
        (place.core("secrets"), secrets),
        *((place.core("pods"), body) for body in pods),
        *(
            (place.core("configmaps"), config_map(name, *owned_by(node, uids[node])))
            for name, node in (("own", HERE), ("theirs", THERE))
        ),
        (place.core("configmaps"), config_map("free")),
        *((slices_path(), body) for body in slices),
        *((claims_path(place), claim_object(f"on-{node}")) for node in (HERE, THERE)),
        *((rules_path(place), body) for body in rules),
    ]


def get(path: str) -> Callable[[Place], Request]:
    """Read what is at a path, in which NAMESPACE is the release's."""
    return lambda place: Request("GET", path.replace("NAMESPACE", place.namespace))


def post(path: str, body: Object) -> Callable[[Place], Request]:
    """Create an object."""
    return lambda place: Request("POST", path.replace("NAMESPACE", place.namespace), body)


def delete(path: str) -> Callable[[Place], Request]:
    """Delete what is at a path."""
    return lambda place: Request("DELETE", path.replace("NAMESPACE", place.namespace))


def patch(path: str, body: Object, media: str = MERGE) -> Callable[[Place], Request]:
    """Change what is at a path."""
    return lambda place: Request("PATCH", path.replace("NAMESPACE", place.namespace), body, media)


def put(path: str, change: Callable[[Object], object]) -> Callable[[Place], Request]:
    """Replace a stored object by a changed one."""

    def make(place: Place) -> Request:
        whole = copy.deepcopy(place.stored[path.replace("NAMESPACE", place.namespace)])
        change(whole)
        return Request("PUT", path.replace("NAMESPACE", place.namespace), whole)

    return make
