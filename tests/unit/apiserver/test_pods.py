"""Subresources of pods and namespaces."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import aiohttp
import pytest
from typing_extensions import override

from dra_kit.apiserver.bootstrap import restore
from dra_kit.apiserver.kinds.kind import StrategyContext
from dra_kit.apiserver.kinds.pods import PodStrategy, ready, restarts, state
from dra_kit.apiserver.server import ApiServer
from dra_kit.apiserver.subresources import STATUS_VERBS, SUBRESOURCES, Subresource, serve_part
from dra_kit.client.api import APPLY, Client
from dra_kit.client.resources import PODS, SERVICE_ACCOUNTS
from dra_kit.errors import Invalid, NotFound
from dra_kit.kubernetes.release import Release
from dra_kit.kubernetes.resource.field_errors import FieldError
from tests.unit.apiserver.conftest import Http, Object, pod

PATH = "/api/v1/namespaces/default/pods/pod-1"
BINDING = {
    "apiVersion": "v1",
    "kind": "Binding",
    "metadata": {"name": "pod-1"},
    "target": {"kind": "Node", "name": "n"},
}

TOKEN_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"
EVICTION = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "pod-1"}}


async def test_a_binding_gives_a_pod_its_node_once(client: Client, http: Http) -> None:
    await client.create(PODS, pod())

    first, _, _ = await http("POST", f"{PATH}/binding", BINDING)
    second, answer, _ = await http("POST", f"{PATH}/binding", BINDING)

    bound = await client.get(PODS, "pod-1", "default")
    assert (first, second) == (201, 409)
    assert "already assigned" in answer["message"]
    assert bound["spec"]["nodeName"] == "n"
    assert [(item["type"], item["status"]) for item in bound["status"]["conditions"]] == [("PodScheduled", "True")]


async def test_a_pod_with_an_empty_variable_is_applied_twice_and_another_value_is_refused(client: Client) -> None:
    variable = {"name": "MODE", "value": ""}
    asked = pod(container={"env": [variable]})

    async def apply() -> None:
        await client.patch(PODS, "pod-1", asked, "default", content_type=APPLY, field_manager="one")

    await apply()
    await apply()
    variable["value"] = "other"
    with pytest.raises(Invalid, match="may not change fields"):
        await apply()


async def test_labels_of_a_pod_complete_the_selectors_of_its_affinity(client: Client) -> None:
    required, preferred = (f"{word}DuringSchedulingIgnoredDuringExecution" for word in ("required", "preferred"))
    term = {
        "topologyKey": "zone",
        "labelSelector": {"matchLabels": {"app": "a"}},
        "matchLabelKeys": ["version", "unknown"],
        "mismatchLabelKeys": ["app"],
    }
    asked = pod(
        spec={
            "affinity": {
                "podAffinity": {required: [term]},
                "podAntiAffinity": {preferred: [{"weight": 1, "podAffinityTerm": term}]},
            }
        }
    )
    asked["metadata"]["labels"] = {"app": "a", "version": "1"}

    affinity = (await client.create(PODS, asked))["spec"]["affinity"]

    expressions = [
        {"key": "version", "operator": "In", "values": ["1"]},
        {"key": "app", "operator": "NotIn", "values": ["a"]},
    ]
    whole = {**term, "labelSelector": {"matchLabels": {"app": "a"}, "matchExpressions": expressions}}
    assert affinity["podAffinity"][required] == [whole]
    assert affinity["podAntiAffinity"][preferred] == [{"weight": 1, "podAffinityTerm": whole}]


async def test_containers_get_the_token_of_the_service_account(client: Client) -> None:
    asked = pod()
    asked["spec"]["initContainers"] = [{"name": "first", "image": "x"}]

    made = await client.create(PODS, asked)

    spec = made["spec"]
    (volume,) = spec["volumes"]
    assert re.fullmatch("kube-api-access-[a-z0-9]{5}", volume["name"])
    mount = {"name": volume["name"], "readOnly": True, "mountPath": TOKEN_PATH}
    assert [item["volumeMounts"] for item in (*spec["initContainers"], *spec["containers"])] == [[mount], [mount]]
    field = {"apiVersion": "v1", "fieldPath": "metadata.namespace"}
    assert volume["projected"] == {
        "defaultMode": 420,
        "sources": [
            {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
            {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
            {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": field}]}},
        ],
    }


@pytest.mark.parametrize(
    ("of_pod", "of_account", "mounted"),
    [(None, None, True), (None, False, False), (True, False, True), (False, True, False), (None, True, True)],
)
async def test_automount_of_the_pod_comes_before_that_of_the_account(
    client: Client, of_pod: bool | None, of_account: bool | None, mounted: bool
) -> None:
    await client.patch(SERVICE_ACCOUNTS, "default", {"automountServiceAccountToken": of_account}, "default")
    asked = pod()
    if of_pod is not None:
        asked["spec"]["automountServiceAccountToken"] = of_pod

    made = await client.create(PODS, asked)

    assert bool(made["spec"].get("volumes")) == mounted


async def test_container_with_another_volume_at_the_path_of_the_token_keeps_it(client: Client) -> None:
    mount = {"name": "own", "mountPath": TOKEN_PATH}
    asked = pod(container={"volumeMounts": [mount]})
    asked["spec"]["volumes"] = [{"name": "own", "emptyDir": {}}]

    made = await client.create(PODS, asked)

    assert [volume["name"] for volume in made["spec"]["volumes"]] == ["own"]
    assert made["spec"]["containers"][0]["volumeMounts"] == [mount]


async def test_an_eviction_deletes_the_pod(client: Client, http: Http) -> None:
    await client.create(PODS, pod())

    status, _, _ = await http("POST", f"{PATH}/eviction", EVICTION)

    assert status == 201
    with pytest.raises(NotFound):
        await client.get(PODS, "pod-1", "default")


async def test_a_pod_in_the_network_of_its_node_has_its_ports_there(client: Client) -> None:
    ports = [{"containerPort": 80}, {"containerPort": 81, "hostPort": 81}]

    made = await client.create(PODS, pod(spec={"hostNetwork": True}, container={"ports": ports}))

    assert [port["hostPort"] for port in made["spec"]["containers"][0]["ports"]] == [80, 81]


async def test_resources_of_a_running_pod_are_read_but_not_changed(client: Client, http: Http) -> None:
    await client.create(PODS, pod())

    status, answer, _ = await http("PUT", f"{PATH}/resize", pod())

    assert (status, answer["reason"]) == (501, "NotImplemented")
    assert answer["message"].endswith("create the pod again with other ones")
    assert (await http("GET", f"{PATH}/resize"))[1] == (await http("GET", PATH))[1]
    assert (await http("PUT", f"{PATH}/resize", pod("other")))[0] == 400


DEBUGGER = {"name": "debugger", "image": "busybox:stable", "targetContainerName": "main", "stdin": True}
PATCH = "application/strategic-merge-patch+json"


async def add_debugger(http: Http, *containers: Object) -> tuple[int, Any]:
    change = {"spec": {"ephemeralContainers": list(containers)}}
    status, answer, _ = await http("PATCH", f"{PATH}/ephemeralcontainers", change, content_type=PATCH)
    return status, answer


async def test_debugger_is_added_to_a_pod_and_nothing_else_changes(client: Client, http: Http) -> None:
    before = await client.create(PODS, pod())
    change = {"metadata": {"labels": {"a": "b"}}, "spec": {"hostNetwork": True, "ephemeralContainers": [DEBUGGER]}}

    status, answer, _ = await http("PATCH", f"{PATH}/ephemeralcontainers", change, content_type=PATCH)

    assert status == 200
    assert answer["spec"].pop("ephemeralContainers") == [
        {
            **DEBUGGER, "resources": {}, "imagePullPolicy": "IfNotPresent",
            "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
        }
    ]  # fmt: skip
    assert answer["spec"] == before["spec"]
    assert answer["metadata"].get("labels") == before["metadata"].get("labels")
    assert answer["metadata"]["generation"] == 2


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"image": None}, "spec.ephemeralContainers[0].image: Required value"),
        ({"name": "main"}, 'spec.ephemeralContainers[0].name: Duplicate value: "main"'),
        ({"targetContainerName": "x"}, 'spec.ephemeralContainers[0].targetContainerName: Not found: "x"'),
        (
            {"ports": [{"containerPort": 80, "protocol": "TCP"}]},
            "spec.ephemeralContainers[0].ports: Forbidden: cannot be set for an Ephemeral Container",
        ),
        (
            {"volumeMounts": [{"name": "v", "mountPath": "/v", "subPath": "a"}]},
            (
                "spec.ephemeralContainers[0].volumeMounts[0].subPath: "
                "Forbidden: cannot be set for an Ephemeral Container"
            ),
        ),
    ],
)
async def test_invalid_debugger_is_rejected(client: Client, http: Http, change: Object, error: str) -> None:
    await client.create(PODS, pod())

    status, answer = await add_debugger(http, {**DEBUGGER, **change})

    assert (status, answer["message"]) == (422, f'Pod "pod-1" is invalid: {error}')


async def test_debugger_is_neither_changed_nor_removed(client: Client, http: Http) -> None:
    await client.create(PODS, pod())
    await add_debugger(http, DEBUGGER)

    status, answer = await add_debugger(http, {**DEBUGGER, "image": "busybox:other"})
    assert (status, "may not be changed" in answer["message"]) == (422, True)
    removed = await client.get(PODS, "pod-1", "default")
    removed["spec"]["ephemeralContainers"] = []
    status, answer, _ = await http("PUT", f"{PATH}/ephemeralcontainers", removed)
    assert (status, "may not be removed" in answer["message"]) == (422, True)
    assert (await add_debugger(http, DEBUGGER, {**DEBUGGER, "name": "second"}))[0] == 200


async def test_new_pod_has_no_debugger(http: Http) -> None:
    status, answer, _ = await http(
        "POST", "/api/v1/namespaces/default/pods", pod(spec={"ephemeralContainers": [DEBUGGER]})
    )

    assert (status, "spec.ephemeralContainers: Forbidden: cannot be set on create" in answer["message"]) == (422, True)


class ResizeStrategy(PodStrategy):
    """Lets a write change only the resources of containers, without rules for them."""

    @override
    def prepare_for_update(self, obj: Object, old: Object, context: StrategyContext) -> None:
        resources = [container.get("resources") for container in obj["spec"]["containers"]]
        containers = [
            {**container, "resources": changed}
            for container, changed in zip(old["spec"]["containers"], resources, strict=True)
        ]
        obj |= {"spec": {**old["spec"], "containers": containers}, "status": old["status"]}

    @override
    def validate_update(self, obj: Object, old: Object, context: StrategyContext) -> list[FieldError]:
        return []


async def test_a_subresource_of_the_same_kind_needs_only_a_strategy(
    client: Client, http: Http, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SUBRESOURCES["pods"], "resize", Subresource("Pod", STATUS_VERBS, serve_part(ResizeStrategy())))
    await client.create(PODS, pod())

    def of(cpu: str) -> Object:
        return pod(container={"image": "example.com/other:1", "resources": {"requests": {"cpu": cpu}}})

    answers = [
        await http("PUT", f"{PATH}/resize", of("1")),
        await http("PATCH", f"{PATH}/resize", of("2"), Content_Type="application/strategic-merge-patch+json"),
        await http("PATCH", f"{PATH}/resize?fieldManager=one&force=true", of("3"),
                   Content_Type="application/apply-patch+yaml"),
        await http("GET", f"{PATH}/resize"),
    ]  # fmt: skip

    seen = [answer["spec"]["containers"][0] for _, answer, _ in answers]
    assert [container["resources"]["requests"]["cpu"] for container in seen] == ["1", "2", "3", "3"]
    assert {container["image"] for container in seen} == {"example.com/app:1"}
    assert answers[-1][1]["metadata"]["generation"] == 4


@pytest.mark.parametrize(
    ("resources", "quality"),
    [
        ({}, "BestEffort"),
        ({"requests": {"cpu": "1"}}, "Burstable"),
        ({"limits": {"cpu": "1", "memory": "1Gi"}}, "Guaranteed"),
        ({"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "500m"}}, "Burstable"),
    ],
)
async def test_the_quality_of_service_follows_from_requests_and_limits(
    client: Client, resources: dict[str, Any], quality: str
) -> None:
    assert (await client.create(PODS, pod(container={"resources": resources})))["status"]["qosClass"] == quality


@pytest.mark.parametrize(("image", "policy"), [("a", "Always"), ("a:latest", "Always"), ("r:5000/a:1", "IfNotPresent")])
async def test_the_pull_policy_follows_from_the_tag(client: Client, image: str, policy: str) -> None:
    created = await client.create(PODS, pod(container={"image": image}))

    assert created["spec"]["containers"][0]["imagePullPolicy"] == policy


async def test_a_container_uses_claims_that_the_pod_has(http: Http) -> None:
    body = pod(container={"resources": {"claims": [{"name": "gpu"}]}})

    status, answer, _ = await http("POST", PODS.path("default"), body)

    assert status == 422
    assert [cause["field"] for cause in answer["details"]["causes"]] == ["spec.containers[0].resources.claims[0]"]


async def test_a_pod_of_an_unknown_service_account_or_priority_class_is_forbidden(http: Http) -> None:
    specs = ({"serviceAccountName": "missing"}, {"priorityClassName": "none"})

    answers = [await http("POST", PODS.path("default"), pod(spec=spec)) for spec in specs]

    assert [status for status, _, _ in answers] == [403, 403]
    assert 'serviceaccount "missing" not found' in answers[0][1]["message"]
    assert "no PriorityClass with name none was found" in answers[1][1]["message"]


async def test_a_priority_class_gives_its_priority(http: Http) -> None:
    body = {"metadata": {"name": "high"}, "value": 7, "preemptionPolicy": "Never"}
    await http("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", body)

    _, created, _ = await http("POST", PODS.path("default"), pod(spec={"priorityClassName": "high"}))

    assert (created["spec"]["priority"], created["spec"]["preemptionPolicy"]) == (7, "Never")


async def test_scheduling_gates_can_only_be_removed(client: Client, http: Http) -> None:
    await client.create(PODS, pod(spec={"schedulingGates": [{"name": "one"}]}))
    merge = {"content_type": "application/merge-patch+json"}

    added, answer, _ = await http("PATCH", PATH, {"spec": {"schedulingGates": [{"name": "two"}]}}, **merge)
    removed, _, _ = await http("PATCH", PATH, {"spec": {"schedulingGates": None}}, **merge)

    assert (added, removed) == (422, 200)
    assert "found new scheduling gate 'two'" in answer["message"]


def told(*, initial: Any = (), own: Any = (), **status: Any) -> list[str]:
    """READY, STATUS and RESTARTS of a pod with two initial containers and one of its own."""
    shown = {"initContainerStatuses": initial, "containerStatuses": own, "phase": "Pending", **status}
    spec = {"initContainers": [{"name": "i"}, {"name": "j"}], "containers": [{"name": "main"}]}
    body = {"metadata": {}, "spec": spec, "status": shown}
    return [cell(body) for cell in (ready, state, restarts)]


def container(name: str, state: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"name": name, "state": state, **more}


DONE = container("i", {"terminated": {"exitCode": 0, "reason": "Completed"}})


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ({}, "Pending"),
        ({"conditions": [{"type": "PodScheduled", "reason": "SchedulingGated"}]}, "SchedulingGated"),
        ({"initial": [container("i", {"running": {}})]}, "Init:0/2"),
        ({"initial": [DONE, container("j", {"waiting": {"reason": "PodInitializing"}})]}, "Init:1/2"),
        ({"initial": [container("i", {"terminated": {"exitCode": 1, "reason": "Error"}})]}, "Init:Error"),
        ({"initial": [container("i", {"terminated": {"exitCode": 3}})]}, "Init:ExitCode:3"),
        ({"initial": [container("i", {"waiting": {"reason": "CrashLoopBackOff"}})]}, "Init:CrashLoopBackOff"),
        ({"own": [container("main", {"waiting": {"reason": "ImagePullBackOff"}})]}, "ImagePullBackOff"),
        ({"own": [container("main", {"terminated": {"exitCode": 0, "reason": "Completed"}})]}, "Completed"),
        ({"own": [container("main", {"running": {}}, ready=True)], "phase": "Running"}, "Running"),
    ],
)  # fmt: skip
def test_pod_state_is_shown_in_one_word(status: dict[str, Any], expected: str) -> None:
    assert told(**status)[1] == expected


def test_restarts_are_shown_with_the_time_of_the_last_one() -> None:
    ended = (datetime.now(UTC) - timedelta(hours=5)).isoformat()[:19] + "Z"
    main = container(
        "main", {"running": {}}, ready=True, restartCount=2, lastState={"terminated": {"finishedAt": ended}}
    )

    assert told(own=[main]) == ["1/1", "Pending", "2 (5h ago)"]


@pytest.mark.parametrize("stored", ["containerStatuses", "initContainerStatuses", ""])
@pytest.mark.parametrize(("version", "stays"), [("1.35", False), ("1.36", True)])
async def test_health_of_devices_in_use_stays_without_its_gate_since_1_36(
    version: str, *, stays: bool, stored: str
) -> None:
    health = [{"name": "example.com/gpu", "resources": [{"resourceID": "a", "health": "Unhealthy"}]}]
    status = {"name": "main", "image": "i", "imageID": "", "ready": True, "restartCount": 0}
    sick = {**status, "allocatedResourcesStatus": health}
    old = {**pod("p", uid="u"), "status": {"phase": "Running", **({stored: [sick]} if stored else {})}}
    running = ApiServer(release=Release.parse(version).without("ResourceHealthStatus"))
    restore(running.api, [old])
    async with running as server, aiohttp.ClientSession() as session:
        _, patched, _ = await Http(session, server.url)(
            "PATCH",
            "/api/v1/namespaces/default/pods/p/status",
            {"status": {"containerStatuses": [sick]}},
            content_type="application/merge-patch+json",
        )

    [found] = patched["status"]["containerStatuses"]
    assert found.get("allocatedResourcesStatus") == (health if stays and stored else None)
