from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dra_kit.sandbox.containers.runtime import ContainerStatus
from dra_kit.sandbox.kubelet.pod_worker import ContainerPlan, plan_containers
from tests.unit.sandbox.cluster.kubelet.pods import Object, container, pod, status


def planned(of: Object, **codes: int | None) -> ContainerPlan:
    """The plan for containers that run (None) or ended with a code; those that are not named never started."""
    return plan_containers(of, {name: status(name, code) for name, code in codes.items()})


def test_regular_containers_start_together() -> None:
    assert planned(pod(container("a"), container("b"))) == ContainerPlan(("a", "b"))


def test_pod_that_never_restarts_ends_with_its_containers() -> None:
    assert planned(pod(container("a"), container("b")), a=1, b=None) == ContainerPlan()
    assert planned(pod(container("a"), container("b")), a=1, b=0) == ContainerPlan(ended=True)


def test_restart_policies() -> None:
    assert planned(pod(container("a"), restartPolicy="OnFailure"), a=1) == ContainerPlan(("a",))
    assert planned(pod(container("a"), restartPolicy="OnFailure"), a=0) == ContainerPlan(ended=True)
    assert planned(pod(container("a"), restartPolicy="Always"), a=0) == ContainerPlan(("a",))


def test_a_containers_own_restart_policy_and_rules() -> None:
    assert planned(pod(container("a", restartPolicy="OnFailure")), a=1) == ContainerPlan(("a",))
    assert planned(pod(container("a", restartPolicy="Never"), restartPolicy="Always"), a=1) == ContainerPlan(ended=True)
    rule = {"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}}
    careful = container("a", restartPolicy="Never", restartPolicyRules=[rule])
    assert planned(pod(careful), a=42) == ContainerPlan(("a",))
    assert planned(pod(careful), a=41) == ContainerPlan(ended=True)


def test_init_containers_come_one_after_the_other() -> None:
    prepared = pod(container("a"), initContainers=[container("i"), container("j")])
    assert planned(prepared) == ContainerPlan(("i",))
    assert planned(prepared, i=None) == ContainerPlan()
    assert planned(prepared, i=0) == ContainerPlan(("j",))
    assert planned(prepared, i=0, j=0) == ContainerPlan(("a",))


def test_failed_init_container_ends_the_pod_or_is_restarted() -> None:
    inits = [container("i")]
    assert planned(pod(container("a"), initContainers=inits), i=1) == ContainerPlan(ended=True)
    assert planned(pod(container("a"), initContainers=inits, restartPolicy="Always"), i=1) == ContainerPlan(("i",))


def test_init_containers_are_not_restarted_in_a_running_pod() -> None:
    assert planned(pod(container("a"), initContainers=[container("i")]), a=None) == ContainerPlan()


def test_sidecar_runs_before_and_next_to_the_containers() -> None:
    inits = [container("s", restartPolicy="Always"), container("i")]
    served = pod(container("a"), initContainers=inits)
    assert planned(served) == ContainerPlan(("s", "i"))
    assert planned(served, s=1, i=None) == ContainerPlan(("s",))
    assert planned(served, s=None, i=0) == ContainerPlan(("a",))
    assert planned(served, s=0, i=0, a=None) == ContainerPlan(("s",))
    assert planned(served, s=None, i=0, a=0) == ContainerPlan(ended=True)


CONTAINERS = st.fixed_dictionaries(
    {"codes": st.lists(st.sampled_from([0, 0, 1]), min_size=1, max_size=4), "sidecar": st.booleans()}
)


@given(
    st.lists(CONTAINERS, max_size=3),
    st.lists(CONTAINERS, min_size=1, max_size=3),
    st.sampled_from(["Never", "OnFailure"]),
)
def test_following_the_plan_always_leads_to_the_end(
    inits: list[dict[str, Any]], regulars: list[dict[str, Any]], policy: str
) -> None:
    """With any exit codes, a pod without endless restarts ends, and init containers start in order."""
    names = [f"i{number}" for number in range(len(inits))]
    made = [
        container(name, **({"restartPolicy": "Always"} if item["sidecar"] else {}))
        for name, item in zip(names, inits, strict=True)
    ]
    whole = pod(
        *(container(f"c{number}") for number in range(len(regulars))), initContainers=made, restartPolicy=policy
    )
    codes = {name: [*item["codes"], 0] for name, item in zip(names, inits, strict=True)}
    codes |= {f"c{number}": [*item["codes"], 0] for number, item in enumerate(regulars)}
    sidecars = {name for name, item in zip(names, inits, strict=True) if item["sidecar"]}
    latest: dict[str, ContainerStatus] = {}
    for _ in range(100):
        now = plan_containers(whole, latest)
        if now.ended:
            break
        regular_inits = [name for name in now.start if name in names and name not in sidecars]
        assert len(regular_inits) <= 1
        assert not (regular_inits and any(name.startswith("c") for name in now.start))
        assert now.start or any(item.running for item in latest.values())
        for name in now.start:
            latest[name] = status(name, None if name in sidecars else codes[name].pop(0))
    else:
        raise AssertionError("no end")
    assert all(not item.running for name, item in latest.items() if name not in sidecars)
