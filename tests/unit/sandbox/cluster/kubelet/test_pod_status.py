from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_kit.sandbox.containers.runtime import ContainerStatus
from dra_kit.sandbox.kubelet.pod_status import ObservedPod, pod_status, status_patch
from tests.unit.sandbox.cluster.kubelet.pods import NOW, Object, container, pod, status

EARLIER = "2025-12-31T00:00:00Z"


def seen(of: Object, *statuses: ContainerStatus, terminated: bool = False, **waiting: tuple[str, str]) -> Object:
    observation = ObservedPod(statuses, waiting, "stopped" if terminated else "ready", terminated=terminated)
    return pod_status(of, observation, now=NOW, address="127.0.0.1")


def condition(of: Object, kind: str) -> Object:
    return next(item for item in of["conditions"] if item["type"] == kind)


@pytest.mark.parametrize(
    ("policy", "codes", "phase"),
    [
        ("Never", [None, None], "Running"),
        ("Never", [None, 1], "Running"),
        ("Never", [0, 0], "Succeeded"),
        ("Never", [0, 1], "Failed"),
        ("OnFailure", [0, 1], "Running"),
        ("OnFailure", [0, 0], "Succeeded"),
        ("Always", [0, 0], "Running"),
    ],
)
def test_the_phase(policy: str, codes: list[int | None], phase: str) -> None:
    whole = pod(container("a"), container("b"), restartPolicy=policy)
    found = seen(whole, *(status(name, code) for name, code in zip("ab", codes, strict=True)), terminated=True)
    assert found["phase"] == phase


def test_a_pod_of_which_one_container_did_not_start_yet_is_pending() -> None:
    found = seen(pod(container("a"), container("b")), status("a"), b=("CreateContainerError", "no oven"))
    assert found["phase"] == "Pending"
    state = found["containerStatuses"][1]["state"]
    assert state == {"waiting": {"reason": "CreateContainerError", "message": "no oven"}}
    assert condition(found, "Ready")["message"] == "containers with unready status: [b]"


def test_a_final_phase_waits_for_the_end_of_everything() -> None:
    whole = pod(container("a"))
    whole["status"]["phase"] = "Running"
    assert seen(whole, status("a", 0))["phase"] == "Running"
    assert seen(whole, status("a", 0), terminated=True)["phase"] == "Succeeded"


def test_deleted_pod_has_a_final_phase_with_any_restart_policy() -> None:
    whole = pod(container("a"), restartPolicy="Always")
    whole["metadata"]["deletionTimestamp"] = EARLIER
    assert seen(whole, status("a", 143), terminated=True)["phase"] == "Failed"
    assert seen(whole, status("a", 0), terminated=True)["phase"] == "Succeeded"


def test_waiting_container_shows_its_last_exit() -> None:
    whole = pod(container("a"), restartPolicy="Always")
    back_off = ("CrashLoopBackOff", "back-off 10s")
    (found,) = seen(whole, status("a", 1), status("a", 2, attempt=1), a=back_off)["containerStatuses"]
    assert found["state"]["waiting"]["reason"] == "CrashLoopBackOff"
    assert found["lastState"]["terminated"]["exitCode"] == 2
    assert (found["restartCount"], found["containerID"]) == (1, "test://a-1")


def test_restarted_container_shows_its_last_exit() -> None:
    whole = pod(container("a"), restartPolicy="Always")
    (found,) = seen(whole, status("a", 1), status("a", attempt=1))["containerStatuses"]
    assert "running" in found["state"]
    assert found["lastState"]["terminated"]["exitCode"] == 1


def test_conditions_keep_the_time_of_their_last_transition() -> None:
    whole = pod(container("a"))
    known = [("Initialized", "True"), ("Ready", "True"), ("PodScheduled", "True")]
    whole["status"]["conditions"] = [
        {"type": kind, "status": value, "lastTransitionTime": EARLIER} for kind, value in known
    ]
    found = seen(whole, status("a", 1))
    assert condition(found, "Initialized")["lastTransitionTime"] == EARLIER
    assert condition(found, "Ready")["lastTransitionTime"] == "2026-01-01T12:00:00Z"


def test_readiness_gates() -> None:
    whole = pod(container("a"), readinessGates=[{"conditionType": "baked"}])
    found = condition(seen(whole, status("a")), "Ready")
    assert found["reason"] == "ReadinessGatesNotReady"
    assert found["message"] == 'corresponding condition of pod readiness gate "baked" does not exist.'
    whole["status"]["conditions"] = [{"type": "baked", "status": "True"}]
    assert condition(seen(whole, status("a")), "Ready")["status"] == "True"


def test_the_generation_that_was_observed() -> None:
    whole = pod(container("a"))
    whole["metadata"]["generation"] = 3
    found = seen(whole, status("a"))
    assert found["observedGeneration"] == 3
    assert {item["observedGeneration"] for item in found["conditions"]} == {3}


def test_patch_keeps_conditions_of_others_and_deletes_removed_keys() -> None:
    whole = pod(container("a"))
    whole["status"]["conditions"] = [
        {"type": "PodScheduled", "status": "True", "lastTransitionTime": EARLIER},
        {"type": "Ready", "status": "False", "reason": "ContainersNotReady", "message": "x"},
    ]
    patch = status_patch(whole, seen(whole, status("a")))
    kinds = [item["type"] for item in patch["conditions"]]
    assert "PodScheduled" not in kinds
    ready = condition(patch, "Ready")
    assert (ready["status"], ready["reason"], ready["message"]) == ("True", None, None)


RUNS = st.lists(st.one_of(st.none(), st.sampled_from([0, 1, 143])), max_size=3).map(
    # only the newest run of a container can go on
    lambda runs: [*(code or 0 for code in runs[:-1]), *runs[-1:]]
)


@given(
    st.lists(RUNS, min_size=1, max_size=3),
    st.lists(RUNS, max_size=2),
    st.sampled_from(["Never", "OnFailure", "Always"]),
    st.booleans(),
    st.booleans(),
)
def test_a_status_never_contradicts_itself(
    regulars: list[list[Any]], inits: list[list[Any]], policy: str, terminated: bool, sidecar: bool
) -> None:
    made = [container(f"i{n}", **({"restartPolicy": "Always"} if sidecar else {})) for n in range(len(inits))]
    whole = pod(*(container(f"c{n}") for n in range(len(regulars))), initContainers=made, restartPolicy=policy)
    runs = {f"c{n}": codes for n, codes in enumerate(regulars)} | {f"i{n}": codes for n, codes in enumerate(inits)}
    statuses = [status(name, code, n) for name, codes in runs.items() for n, code in enumerate(codes)]
    found = seen(whole, *statuses, terminated=terminated)
    every = [*found["containerStatuses"], *found.get("initContainerStatuses", [])]
    for item in every:
        (kind,) = item["state"]
        assert item["started"] == (kind == "running")
        assert item["restartCount"] == max(0, len(runs[item["name"]]) - 1)
    if found["phase"] in {"Succeeded", "Failed"}:
        assert terminated
        assert condition(found, "Ready")["status"] == condition(found, "ContainersReady")["status"] == "False"
    if found["phase"] == "Succeeded":
        assert all(item["state"].get("terminated", {}).get("exitCode") == 0 for item in found["containerStatuses"])
    if condition(found, "Ready")["status"] == "True":
        assert all(item["ready"] for item in found["containerStatuses"])
