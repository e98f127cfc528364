"""Resources at pod level, and fields of features that are off. The verdicts were measured on kube-apiserver 1.37.1."""

from __future__ import annotations

import pytest

from tests.unit.apiserver.conftest import Http, Object, pod

PODS = "/api/v1/namespaces/default/pods"
AT_LEAST = "must be greater than or equal to aggregate container requests of"
SUPPORTED = 'supported values: "cpu", "hugepages-", "memory"'
CPU, MEMORY = {"cpu": "1"}, {"memory": "1Gi"}


def with_resources(resources: Object, *containers: Object) -> Object:
    listed = [{"name": f"c{i}", "image": "a:1", "resources": item} for i, item in enumerate(containers)]
    return pod(spec={"resources": resources, "containers": listed})


@pytest.mark.parametrize(
    ("given", "containers", "expected", "quality"),
    [
        ({"requests": CPU}, [{}], {"requests": CPU}, "Burstable"),
        ({"limits": CPU}, [{}], {"limits": CPU, "requests": CPU}, "Burstable"),
        ({"limits": CPU | MEMORY}, [{}], {"limits": CPU | MEMORY, "requests": CPU | MEMORY}, "Guaranteed"),
        (
            {"limits": CPU | MEMORY, "requests": {"cpu": "500m"}},
            [{"requests": {"cpu": "100m", "memory": "10Mi"}}],
            {"limits": CPU | MEMORY, "requests": {"cpu": "500m", "memory": "10Mi"}},
            "Burstable",
        ),
        (
            {"limits": MEMORY},
            [{"requests": {"memory": "10Mi"}}, {"limits": CPU}],
            {"limits": MEMORY, "requests": {"cpu": "1", "memory": "10Mi"}},
            "Burstable",
        ),
        (
            {"limits": MEMORY},
            [{"limits": CPU}, {"limits": {"cpu": "2"}}],
            {"limits": {"cpu": "3", "memory": "1Gi"}, "requests": {"cpu": "3", "memory": "1Gi"}},
            "Guaranteed",
        ),
        (
            {"requests": CPU},
            [{"limits": {"hugepages-2Mi": "2Mi", "cpu": "1"}}, {}],
            {"limits": {"hugepages-2Mi": "2Mi"}, "requests": {"cpu": "1", "hugepages-2Mi": "2Mi"}},
            "Burstable",
        ),
        ({"requests": CPU}, [{"limits": {"example.com/a": "1"}}], {"requests": CPU}, "Burstable"),
        ({}, [{}], {}, "BestEffort"),
    ],
)
async def test_resources_of_a_pod_follow_from_those_of_its_containers(
    http: Http, given: Object, containers: list[Object], expected: Object, quality: str
) -> None:
    code, answer, _ = await http("POST", PODS, with_resources(given, *containers))

    assert code == 201, answer["message"]
    assert (answer["spec"]["resources"], answer["status"]["qosClass"]) == (expected, quality)


@pytest.mark.parametrize(
    ("given", "container", "cause"),
    [
        (
            {"requests": {"cpu": "100m"}},
            {"requests": {"cpu": "200m"}},
            f'requests[cpu]: Invalid value: "100m": {AT_LEAST} 200m',
        ),
        (
            {"limits": {"cpu": "100m"}},
            {"limits": {"cpu": "200m"}, "requests": {"cpu": "50m"}},
            'containers[0][cpu].limits: Invalid value: "200m": must be less than or equal to pod limits of 100m',
        ),
        (
            {"requests": {"cpu": "2"}, "limits": CPU},
            {},
            'requests: Invalid value: "2": must be less than or equal to cpu limit of 1',
        ),
        (
            {"requests": {"ephemeral-storage": "1Gi"}},
            {},
            f'requests[ephemeral-storage]: Unsupported value: "ephemeral-storage": {SUPPORTED}',
        ),
    ],
)  # fmt: skip
async def test_resources_of_a_pod_are_checked(http: Http, given: Object, container: Object, cause: str) -> None:
    code, answer, _ = await http("POST", PODS, with_resources(given, container))

    assert (code, answer["message"]) == (422, f'Pod "pod-1" is invalid: spec.resources.{cause}')


GATED = {
    "schedulingGroup": {"podGroupName": "a"},
    "os": {"name": "linux"},
    "containers": [
        {"name": "c", "image": "a:1", "lifecycle": {"stopSignal": "SIGUSR1", "preStop": {"sleep": {"seconds": 1}}}},
        {"name": "d", "image": "a:1", "lifecycle": {"stopSignal": "SIGUSR1"}},
    ],
}


@pytest.mark.parametrize("kind", ["Pod", "Deployment", "DaemonSet", "ReplicaSet", "StatefulSet"])
async def test_fields_of_features_that_are_off_are_dropped(http: Http, kind: str) -> None:
    path, body = PODS, pod(spec=GATED)
    if kind != "Pod":
        path = f"/apis/apps/v1/namespaces/default/{kind.lower()}s"
        template = {"metadata": {"labels": {"a": "b"}}, "spec": body["spec"]}
        spec = {"selector": {"matchLabels": {"a": "b"}}, "template": template}
        body = {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": "one"}, "spec": spec}
    code, answer, _ = await http("POST", path, body)

    assert code == 201, answer["message"]
    stored = answer["spec"] if kind == "Pod" else answer["spec"]["template"]["spec"]
    assert "schedulingGroup" not in stored
    assert [item.get("lifecycle") for item in stored["containers"]] == [{"preStop": {"sleep": {"seconds": 1}}}, None]
