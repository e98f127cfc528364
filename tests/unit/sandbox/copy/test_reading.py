"""Reading a saved cluster to run it: what is taken, and what is refused with a reason."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dra_kit.apiserver.api import Api, RuntimeConfig
from dra_kit.apiserver.kinds.kind import KindRegistry
from dra_kit.apiserver.server import AdmissionChain
from dra_kit.diagnosis.snapshot import load
from dra_kit.diagnosis.support_bundle import SupportBundle, redact_object, secrets_in_objects, write_archive
from dra_kit.errors import ConfigurationError
from dra_kit.kubernetes.release import Release
from dra_kit.sandbox.cluster_copy import ClusterCopy
from tests.support import saved_cluster as saved


def api_of(copy: ClusterCopy) -> Api:
    """An API with the objects of a copy."""
    registry = KindRegistry(RuntimeConfig().served(copy.release))
    api = Api(copy.release, AdmissionChain(), registry)
    copy.restore(api)
    return api


def test_objects_keep_uids_versions_and_statuses(tmp_path: Path) -> None:
    objects = saved.full_cluster()
    objects[5]["metadata"]["resourceVersion"] = "4711"

    api = api_of(ClusterCopy.read(saved.write(tmp_path / "c.json", objects)))

    claim, pod = api.lookup("resourceclaims.resource.k8s.io", "train/one"), api.lookup("pods", "train/second")
    assert claim is not None
    assert claim["metadata"]["uid"] == "claim-one"
    assert claim["status"]["reservedFor"] == [{"resource": "pods", "name": "first", "uid": "pod-first"}]
    assert pod is not None
    assert pod["metadata"]["resourceVersion"] == "4711"
    assert api.storage.revision > 4711
    assert api.lookup("namespaces", "train") is not None
    assert api.lookup("serviceaccounts", "train/default") is not None


def test_summary_and_notes_say_what_there_is(tmp_path: Path) -> None:
    gated = saved.pod("gated")
    gated["spec"]["schedulingGates"] = [{"name": "queue"}]
    deployment = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}}

    copy = ClusterCopy.read(saved.write(tmp_path / "c.json", [*saved.full_cluster(), gated, deployment]))

    assert copy.summary == (
        "1 node, 2 devices of gpu.example.com, 2 pods on nodes and 1 without; 2 of 3 claims allocated"
    )
    notes = "\n".join(copy.notes)
    assert "1 pod waits for another scheduler, or for scheduling gates" in notes
    assert "left out, because controllers would act on them without their pods: 1 Deployment" in notes


def test_a_cluster_without_nodes_says_that_no_pod_finds_a_place(tmp_path: Path) -> None:
    objects = [item for item in saved.full_cluster() if item["kind"] != "Node"]

    copy = ClusterCopy.read(saved.write(tmp_path / "c.json", objects))

    assert "it has no Node, so that no pod finds a place" in "\n".join(copy.notes)
    assert copy.absent_nodes == {"gpu-1"}


def test_pods_that_hold_claims_and_were_not_saved_are_known(tmp_path: Path) -> None:
    objects = [item for item in saved.full_cluster() if item["metadata"]["name"] != "first"]

    copy = ClusterCopy.read(saved.write(tmp_path / "c.json", objects))

    assert list(copy.absent_consumers["pods"]) == [("train", "first")]


def test_two_objects_of_one_name_are_refused_unless_they_are_equal(tmp_path: Path) -> None:
    twice = [*saved.full_cluster(), saved.node()]
    assert len(ClusterCopy.read(saved.write(tmp_path / "c.json", twice)).objects) == len(saved.full_cluster())

    other = [*saved.full_cluster(), saved.node(spec={"unschedulable": True})]
    with pytest.raises(ConfigurationError, match="has Node gpu-1 twice, with different contents; remove one"):
        ClusterCopy.read(saved.write(tmp_path / "c.json", other))


def test_objects_that_validation_refuses_today_are_taken(tmp_path: Path) -> None:
    objects = saved.full_cluster()
    objects[2]["spec"]["selectors"] = [{"cel": {"expression": "this is not CEL"}}]
    objects[0]["metadata"]["name"] = "Not_A_Name"

    api = api_of(ClusterCopy.read(saved.write(tmp_path / "c.json", objects)))

    found = api.lookup("deviceclasses.resource.k8s.io", "gpu")
    assert found is not None
    assert found["spec"]["selectors"][0]["cel"]["expression"] == "this is not CEL"
    assert api.lookup("nodes", "Not_A_Name") is not None


def test_a_name_with_a_slash_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="Pod train/a/b is corrupt: its name or namespace contains a slash"):
        ClusterCopy.read(saved.write(tmp_path / "c.json", [*saved.full_cluster(), saved.pod("a/b")]))


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (("namespace",), 5, "ResourceQuota 5/limits is corrupt: its namespace is not text; save it again"),
        (("namespace",), "a/b", "ResourceQuota a/b/limits is corrupt: its name or namespace contains a slash"),
        (("uid",), [1], "ResourceQuota train/limits is corrupt: its UID is not text; save it again"),
    ],
)
def test_metadata_of_further_kinds_is_checked(tmp_path: Path, place: tuple[str], value: Any, message: str) -> None:
    quota: Any = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "limits", "namespace": "train"}}
    put(quota["metadata"], place, value)

    with pytest.raises(ConfigurationError, match=message):
        ClusterCopy.read(saved.write(tmp_path / "c.json", [*saved.full_cluster(), quota]))


def test_a_consumer_of_a_claim_must_be_an_object(tmp_path: Path) -> None:
    objects = saved.full_cluster()
    objects[4]["status"]["reservedFor"] = [None]

    with pytest.raises(
        ConfigurationError, match=r"ResourceClaim train/one is corrupt: status\.reservedFor\[0\] is not an object; save"
    ):
        ClusterCopy.read(saved.write(tmp_path / "c.json", objects))


@pytest.mark.parametrize("spec", [None, {}, {"driver": ""}])
def test_a_slice_without_a_driver_is_refused(tmp_path: Path, spec: Any) -> None:
    objects = saved.full_cluster()
    objects[1]["spec"] = spec

    with pytest.raises(ConfigurationError, match=r"ResourceSlice gpu-1-slice is corrupt: it has no spec\.driver; save"):
        ClusterCopy.read(saved.write(tmp_path / "c.json", objects))


def test_two_objects_with_one_uid_are_refused(tmp_path: Path) -> None:
    copied = saved.pod("fourth")
    copied["metadata"]["uid"] = "pod-third"

    with pytest.raises(
        ConfigurationError,
        match=r"Pod train/third and Pod train/fourth have the same metadata\.uid, pod-third; remove it from the one",
    ):
        ClusterCopy.read(saved.write(tmp_path / "c.json", [*saved.full_cluster(), copied]))

    del copied["metadata"]["uid"]
    assert ClusterCopy.read(saved.write(tmp_path / "c.json", [*saved.full_cluster(), copied])).objects


def test_gates_of_the_snapshot_are_used(tmp_path: Path) -> None:
    saved.write(tmp_path / "objects.json", saved.full_cluster())
    index = tmp_path / "snapshot.json"

    index.write_text(json.dumps({"version": "1.34"}))
    old = ClusterCopy.read(tmp_path)
    index.write_text(json.dumps({"version": "1.37", "alpha": True}))
    alpha = ClusterCopy.read(tmp_path)
    index.write_text(json.dumps({"version": "1.29"}))

    assert not {"DRAConsumableCapacity", "DRADeviceTaints", "DRAExtendedResource"} & old.release.enabled
    assert alpha.release == Release.alpha()
    with pytest.raises(ConfigurationError, match=r"Kubernetes 1\.29"):
        ClusterCopy.read(tmp_path)


def test_a_support_bundle_is_read_with_its_redactions(tmp_path: Path) -> None:
    objects = saved.full_cluster()
    opaque = {"driver": saved.DRIVER, "parameters": {"kind": "Config", "password": "correct-horse"}}
    objects[4]["spec"]["devices"]["config"] = [{"opaque": opaque}]
    bundle = SupportBundle(words=secrets_in_objects(objects))
    for kind in ("ResourceSlice", "DeviceClass", "ResourceClaim", "Pod", "Node"):
        items = [redact_object(kind, item) for item in objects if item["kind"] == kind]
        bundle.add_json(f"objects/{kind.lower()}s.json", items)
    bundle.add_json("who.json", [{"driver": saved.DRIVER}])
    bundle.add_json("node/status.json", {"pods": []})
    bundle.files["logs/driver.log"] = "started"
    write_archive(tmp_path / "bundle.tar.gz", bundle.safe_files())

    copy = ClusterCopy.read(tmp_path / "bundle.tar.gz")

    api = api_of(copy)
    claim = api.lookup("resourceclaims.resource.k8s.io", "train/one")
    assert claim is not None
    assert claim["spec"]["devices"]["config"][0]["opaque"]["parameters"] == "(removed)"
    assert "a support bundle has only the pods of the driver" in "\n".join(copy.notes)
    assert len(load(tmp_path / "bundle.tar.gz").documents["Pod"]) == 3


def test_nodes_of_the_sandbox_have_names_that_the_copy_does_not_have(tmp_path: Path) -> None:
    objects = [*saved.full_cluster(), saved.node("node-1"), saved.node("node-7"), saved.node("node-x")]

    assert ClusterCopy.read(saved.write(tmp_path / "c.json", objects)).first_node == 8


def paths_of(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all values in a document."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, item in items for place in paths_of(item, (*path, key)))]


WRONG = st.one_of(
    st.none(), st.booleans(), st.integers(), st.text(max_size=5), st.just([]), st.just({}), st.just([None]),
    st.just({"a": {"b": []}}), st.sampled_from(["", "-1", "1e400", "a/b", "999999999999999999999"]),
)  # fmt: skip
PLACES = paths_of(saved.full_cluster())[1:]


@pytest.mark.processes
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.sampled_from(PLACES), WRONG), min_size=1, max_size=3))
def test_corrupt_objects_are_refused_in_words_or_taken(tmp_path: Path, damages: list[tuple[Any, Any]]) -> None:
    objects: Any = saved.full_cluster()
    for place, value in damages:
        put(objects, place, value)
    file = saved.write(tmp_path / "c.json", objects)

    error = _error(lambda: api_of(ClusterCopy.read(file)))

    assert error is None or (error and "\n" not in error)


def put(objects: Any, place: tuple[Any, ...], value: Any) -> None:
    """Put a value at a path, as far as it still exists."""
    *way, last = place
    for step in way:
        if not (isinstance(objects, dict) and step in objects) and not (
            isinstance(objects, list) and isinstance(step, int) and step < len(objects)
        ):
            return
        objects = objects[step]
    if isinstance(objects, dict) or (isinstance(objects, list) and isinstance(last, int) and last < len(objects)):
        objects[last] = deepcopy(value)  # it is put in several places, and in itself


def _error(work: Callable[[], object]) -> str | None:
    try:
        work()
    except ConfigurationError as error:
        return str(error)
    return None
