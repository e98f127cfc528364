from __future__ import annotations

import json

import pytest

from dra_kit.diagnosis.explain.cluster import ClusterDocuments, reduced
from dra_kit.errors import ConfigurationError

WAITING = {"waiting": {"reason": "CreateContainerConfigError", "message": "no such key"}}
CONTAINER = {"name": "main", "image": "hunter2", "imageID": "hunter2", "state": WAITING}

POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {
        "name": "guest",
        "namespace": "default",
        "uid": "1",
        "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "hunter2", "note": "hunter2"},
        "managedFields": [{"manager": "hunter2"}],
    },
    "spec": {
        "nodeName": "node-1",
        "containers": [
            {
                "name": "main",
                "image": "hunter2",
                "command": ["hunter2"],
                "args": ["hunter2"],
                "env": [{"name": "PASSWORD", "value": "hunter2"}],
                "resources": {"requests": {"cpu": "1"}, "claims": [{"name": "pizza"}]},
            }
        ],
        "resourceClaims": [{"name": "pizza", "resourceClaimName": "lunch"}],
        "volumes": [{"name": "hunter2"}],
    },
    "status": {"phase": "Running", "podIP": "hunter2", "containerStatuses": [CONTAINER]},
}


def test_possible_secrets_of_pods_are_not_saved() -> None:
    saved = reduced("Pod", POD)

    assert "hunter2" not in json.dumps(saved)
    assert saved["spec"]["containers"][0]["resources"]["requests"] == {"cpu": "1"}
    assert saved["spec"]["resourceClaims"] == POD["spec"]["resourceClaims"]  # type: ignore[index]
    assert saved["status"] == {"phase": "Running", "containerStatuses": [{"name": "main", "state": WAITING}]}


def test_labels_taints_and_allocatable_of_nodes_are_saved() -> None:
    node = {
        "metadata": {"name": "node-1", "labels": {"rack": "r1"}},
        "spec": {"taints": [{"key": "k", "effect": "NoSchedule"}], "podCIDR": "10.0.0.0/24"},
        "status": {"allocatable": {"cpu": "4"}, "addresses": [{"address": "10.0.0.1"}], "declaredFeatures": ["A"]},
    }

    saved = reduced("Node", node)

    assert saved["metadata"] == {"name": "node-1", "labels": {"rack": "r1"}}
    assert saved["spec"] == {"taints": [{"key": "k", "effect": "NoSchedule"}]}
    assert saved["status"] == {"allocatable": {"cpu": "4"}, "declaredFeatures": ["A"]}


def test_of_host_paths_only_the_folders_of_kubelet_plugins_are_saved() -> None:
    paths = ["/var/lib/kubelet/plugins_registry", "/var/lib/kubelet/plugins/dra.pizza", "/etc/secret", "/opt/plugins2"]
    volumes = [{"name": f"v{number}", "hostPath": {"path": path, "type": ""}} for number, path in enumerate(paths)]

    saved = reduced("Pod", {"metadata": {"name": "p"}, "spec": {"containers": [], "volumes": volumes}})

    assert [volume["hostPath"] for volume in saved["spec"]["volumes"]] == [{"path": path} for path in paths[:2]]


def test_claims_and_slices_are_saved_completely() -> None:
    slice_ = {"metadata": {"name": "s"}, "spec": {"driver": "d", "devices": [{"name": "a"}]}, "kind": "ResourceSlice"}

    assert reduced("ResourceSlice", slice_)["spec"] == slice_["spec"]


def test_objects_of_a_manifest_replace_those_of_the_same_name() -> None:
    def claim(name: str, note: str) -> dict[str, object]:
        return {"metadata": {"name": name, "namespace": "default"}, "note": note}

    objects = ClusterDocuments({"ResourceClaim": [claim("a", "old"), claim("b", "old")]}, "1.37")

    found = objects.with_({"ResourceClaim": [claim("b", "new")]}).documents["ResourceClaim"]

    assert [(each["metadata"]["name"], each["note"]) for each in found] == [("a", "old"), ("b", "new")]


@pytest.mark.parametrize("version", ["1.33", "v2.0", "nonsense"])
def test_a_release_that_is_not_supported_is_refused(version: str) -> None:
    with pytest.raises(ConfigurationError, match=r"1\.34|not a Kubernetes release"):
        ClusterDocuments({}, version).cluster()


@pytest.mark.parametrize("version", ["1.34", "v1.36.2", "1.37+", "1.40"])
def test_releases_are_identified_by_minor_version(version: str) -> None:
    assert ClusterDocuments({}, version).cluster().gates.admin_access


def test_an_object_that_no_api_server_accepts_is_named() -> None:
    broken = {"metadata": {"name": "s"}, "spec": {"devices": "none"}}

    with pytest.raises(ConfigurationError, match=r"ResourceSlice s: spec\.devices: "):
        ClusterDocuments({"ResourceSlice": [broken]}, "1.37").cluster()
