"""What kubelets may do; the verdicts of a real API server are replayed by tests/golden (G-nodes)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_kit.apiserver.authentication import User
from dra_kit.apiserver.authorization import AuthorizationAttributes
from dra_kit.apiserver.node_authorization import NodeAuthorizer
from tests.unit.apiserver.conftest import Http, pod

KUBELET = {"Impersonate_User": "system:node:node-a", "Impersonate_Group": "system:nodes"}
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
_names = st.sampled_from(["", "a", "b"])
_references = st.fixed_dictionaries(
    {
        "imagePullSecrets": st.lists(st.fixed_dictionaries({"name": _names}), max_size=2),
        "volumes": st.lists(
            st.one_of(
                st.fixed_dictionaries({"name": st.just("v"), "secret": st.fixed_dictionaries({"secretName": _names})}),
                st.fixed_dictionaries({"name": st.just("v"), "configMap": st.fixed_dictionaries({"name": _names})}),
            ),
            max_size=2,
        ),
    }
)


@given(spec=_references, node=st.sampled_from(["node-a", "node-b"]), mirror=st.booleans())
def test_kubelet_reads_exactly_what_its_pods_refer_to(spec: Any, node: str, mirror: bool) -> None:
    annotations = {"kubernetes.io/config.mirror": "x"} if mirror else {}
    running = {"metadata": {"name": "p", "annotations": annotations}, "spec": {**spec, "nodeName": node}}
    authorizer = NodeAuthorizer(lambda resource, key: None, lambda resource, prefix: [running])
    kubelet = User("system:node:node-a", ("system:nodes",))

    pulled = {item["name"] for item in spec["imagePullSecrets"]}
    mounted = {volume.get("secret", {}).get("secretName") for volume in spec["volumes"]}
    configured = {volume.get("configMap", {}).get("name") for volume in spec["volumes"]}
    for plural, named in (("secrets", pulled | mounted), ("configmaps", configured)):
        for name in ("a", "b"):
            asked = AuthorizationAttributes("get", "", plural, namespace="default", name=name)
            expected = node == "node-a" and not mirror and name in named
            assert authorizer.authorize(kubelet, asked).allowed is expected
            assert not authorizer.authorize(User("system:node:node-a"), asked).allowed


def slice_of(name: str, **where: Any) -> dict[str, Any]:
    pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
    return {"metadata": {"name": name}, "spec": {"driver": "gpu.example.com", "pool": pool, **where}}


async def test_kubelet_creates_and_deletes_slices_of_its_node_only(http: Http) -> None:
    assert (await http("POST", SLICES, slice_of("other", nodeName="node-b")))[0] == 201

    own = await http("POST", SLICES, slice_of("own", nodeName="node-a"), **KUBELET)
    status, answer, _ = await http("POST", SLICES, slice_of("all", allNodes=True), **KUBELET)

    assert own[0] == 201
    assert (status, answer["reason"]) == (403, "Forbidden")
    assert "can only create ResourceSlice with the same NodeName" in answer["message"]
    assert (await http("DELETE", f"{SLICES}/other", **KUBELET))[0] == 403
    assert (await http("DELETE", f"{SLICES}/own", **KUBELET))[0] == 200


@pytest.mark.parametrize(
    ("labels", "allowed"),
    [
        ({"a": "b", "kubernetes.io/hostname": "node-a", "x.node.kubernetes.io/y": "z"}, True),
        ({"node-role.kubernetes.io/worker": ""}, False),
        ({"node-restriction.kubernetes.io/a": "b"}, False),
    ],
)
async def test_kubelet_sets_no_labels_that_steer_pods_to_its_node(
    http: Http, labels: dict[str, str], allowed: bool
) -> None:
    node = {"metadata": {"name": "node-a", "labels": labels}}

    assert (await http("POST", "/api/v1/nodes", node, **KUBELET))[0] == (201 if allowed else 403)


async def test_token_for_kubelet_is_bound_to_a_pod_of_its_node(http: Http) -> None:
    pods, token = "/api/v1/namespaces/default/pods", "/api/v1/namespaces/default/serviceaccounts/default/token"
    projected = {"sources": [{"serviceAccountToken": {"path": "t", "audience": "vault"}}]}
    running = pod("p")
    running["spec"] |= {"nodeName": "node-a", "volumes": [{"name": "v", "projected": projected}]}
    _, created, _ = await http("POST", pods, running)
    reference = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": created["metadata"]["uid"]}
    spec = {"boundObjectRef": reference, "audiences": ["vault"]}

    assert (await http("POST", token, {"spec": spec}, **KUBELET))[0] == 201
    for refused in ({}, {**spec, "audiences": ["other"]}, {**spec, "boundObjectRef": {**reference, "uid": "x"}}):
        assert (await http("POST", token, {"spec": refused}, **KUBELET))[0] == 403


async def test_kubelet_deletes_and_evicts_pods_of_its_node_only(http: Http) -> None:
    pods = "/api/v1/namespaces/default/pods"
    other = pod("other")
    other["spec"]["nodeName"] = "node-b"
    assert (await http("POST", pods, other))[0] == 201
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "other"}}

    assert (await http("DELETE", f"{pods}/other", **KUBELET))[0] == 403
    assert (await http("POST", f"{pods}/other/eviction", eviction, **KUBELET))[0] == 403
    assert (await http("PATCH", f"{pods}/other/status", {}, content_type="application/merge-patch+json", **KUBELET))[
        0
    ] == 403
    assert (await http("GET", f"{pods}/other"))[0] == 200


async def test_kubelet_with_every_role_still_binds_no_pods(http: Http) -> None:
    admin = {"kind": "ClusterRole", "name": "cluster-admin"}
    subject = {"kind": "User", "name": "system:node:node-a"}
    bound = {"metadata": {"name": "kubelet"}, "roleRef": admin, "subjects": [subject]}
    assert (await http("POST", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", bound))[0] == 201
    assert (await http("POST", "/api/v1/namespaces/default/pods", pod("p")))[0] == 201
    metadata = {"name": "p", "annotations": {"kubernetes.io/config.mirror": "x"}}
    binding = {"metadata": metadata, "target": {"kind": "Node", "name": "node-a"}}

    status, answer, _ = await http("POST", "/api/v1/namespaces/default/pods/p/binding", binding, **KUBELET)

    assert status == 403
    assert answer["message"].endswith(
        "unexpected pod subresource \"binding\", only 'status' and 'eviction' are allowed"
    )


async def test_kubelet_keeps_its_permissions_when_the_role_for_nodes_is_deleted(http: Http) -> None:
    assert (await http("DELETE", "/apis/rbac.authorization.k8s.io/v1/clusterroles/system:node"))[0] == 200

    assert (await http("GET", "/api/v1/services", **KUBELET))[0] == 200


async def test_kubelet_points_its_node_to_no_other_configuration(http: Http) -> None:
    assert (await http("POST", "/api/v1/nodes", {"metadata": {"name": "node-a"}}, **KUBELET))[0] == 201
    source = {"configMap": {"namespace": "kube-system", "name": "c", "kubeletConfigKey": "k"}}
    merge = {"content_type": "application/merge-patch+json", **KUBELET}

    status, answer, _ = await http("PATCH", "/api/v1/nodes/node-a", {"spec": {"configSource": source}}, **merge)

    assert status == 403
    assert answer["message"].endswith("is not allowed to update configSource to a new non-nil configSource")
