from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dra_kit.kubernetes.scheduler.controllers import DELETE_PROTECTION, claim_update

Object = dict[str, Any]


def pod(name: str, uid: str, phase: str = "Running", *, node: str = "node-1", deleted: bool = False) -> Object:
    metadata = {"name": name, "namespace": "default", "uid": uid}
    if deleted:
        metadata["deletionTimestamp"] = "now"
    return {"metadata": metadata, "spec": {"nodeName": node} if node else {}, "status": {"phase": phase}}


def consumer(name: str, uid: str, resource: str = "pods") -> Object:
    return {"resource": resource, "name": name, "uid": uid}


PODS = st.lists(
    st.builds(
        pod,
        st.sampled_from(["a", "b"]),
        st.sampled_from(["1", "2"]),
        st.sampled_from(["Pending", "Running", "Succeeded", "Failed"]),
        node=st.sampled_from(["", "node-1"]),
        deleted=st.booleans(),
    ),
    max_size=3,
).map(lambda pods: {("default", item["metadata"]["name"]): item for item in pods})
CONSUMERS = st.lists(
    st.builds(consumer, st.sampled_from("abc"), st.sampled_from("12"), st.sampled_from(["pods", "podgroups"])),
    max_size=3,
    unique_by=str,
)


@st.composite
def claims(draw: st.DrawFn) -> Object:
    metadata: Object = {"name": "lunch", "namespace": "default", "uid": "c"}
    if draw(st.booleans()):
        metadata["finalizers"] = ["example.com/other", DELETE_PROTECTION]
    if draw(st.booleans()):
        metadata["deletionTimestamp"] = "now"
    if draw(st.booleans()):
        owner = draw(st.sampled_from("12"))
        metadata["ownerReferences"] = [
            {"apiVersion": "v1", "kind": "Pod", "name": "a", "uid": owner, "controller": True}
        ]
    status: Object = {}
    if draw(st.booleans()):
        status = {"allocation": {"devices": {}}, "devices": [{}]}
        if reserved := draw(CONSUMERS):
            status["reservedFor"] = reserved
    return {"metadata": metadata, "status": status}


def applied(claim: Object, pods: dict[tuple[str, str], Object]) -> Object:
    """Return the claim after its next update."""
    step = claim_update(claim, pods)
    status = claim["status"] if step.status is None else step.status
    metadata = dict(claim["metadata"])
    if step.finalizers is not None:
        metadata["finalizers"] = step.finalizers
    if step.delete:
        metadata["deletionTimestamp"] = "now"
    return {"metadata": metadata, "status": status}


@given(claims(), PODS)
def test_claim_update_converges(claim: Object, pods: dict[tuple[str, str], Object]) -> None:
    settled = applied(applied(claim, pods), pods)

    assert applied(settled, pods) == settled


@given(claims(), PODS)
def test_last_consumer_releases_allocation(claim: Object, pods: dict[tuple[str, str], Object]) -> None:
    before, after = claim["status"], applied(claim, pods)["status"]

    kept = after.get("reservedFor", [])
    assert [item for item in before.get("reservedFor", []) if item in kept] == kept
    if "allocation" in before and "allocation" not in after:
        assert not kept
        assert DELETE_PROTECTION in claim["metadata"]["finalizers"]


@given(claims(), PODS)
def test_fields_of_other_clients_stay(claim: Object, pods: dict[tuple[str, str], Object]) -> None:
    finalizers = applied(claim, pods)["metadata"].get("finalizers", [])

    assert ("example.com/other" in finalizers) == ("example.com/other" in claim["metadata"].get("finalizers", []))
    for item in claim["status"].get("reservedFor", []):
        if item["resource"] != "pods":
            assert item in applied(claim, pods)["status"]["reservedFor"]


def test_claim_being_allocated_keeps_finalizer() -> None:
    claim = {"metadata": {"name": "lunch", "namespace": "default", "finalizers": [DELETE_PROTECTION]}, "status": {}}

    assert claim_update(claim, {}).finalizers is None
