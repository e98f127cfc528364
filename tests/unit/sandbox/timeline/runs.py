"""Made-up runs: the records that a sandbox could have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from dra_kit.kubelet.cdi.spec import SpecEdits
from dra_kit.kubernetes.resource.objects import ClaimReference, PodReference
from dra_kit.sandbox.records import (
    PREPARE,
    CallEnded,
    CallStarted,
    ClusterStarted,
    ContainerEnded,
    ContainerOutput,
    ContainerReference,
    ContainerStarted,
    ExitStatus,
    ObjectChanged,
    PodDeletionExplained,
    PodExplained,
    PodScheduled,
    PodTerminating,
    PodUnschedulable,
    Record,
    RunEnded,
)

LUNCH = ClaimReference("default", "lunch", "claim-1")


def who(number: int = 0) -> PodReference:
    return PodReference("default", f"guest-{number}", f"uid-{number}")


def pod(number: int = 0, phase: str = "Pending", **metadata: Any) -> dict[str, Any]:
    about = {"namespace": "default", "name": who(number).name, "uid": who(number).uid, **metadata}
    return {"metadata": about, "spec": {"nodeName": "node-1", "containers": []}, "status": {"phase": phase}}


def changed(item: dict[str, Any], change: Any = "MODIFIED") -> ObjectChanged:
    return ObjectChanged(change=change, resource="pods", object=item)


def eater(number: int = 0, attempt: int = 0) -> ContainerReference:
    return ContainerReference(who(number), "eater", f"r://{number}-{attempt}")


def started(number: int = 0, attempt: int = 0, end: ExitStatus | None = None) -> ContainerStarted:
    edits = SpecEdits(env=("CHEESE=brie",))
    variables = {"CHEESE": "brie", "HOME": "/"}
    return ContainerStarted(
        node="node-1",
        container=eater(number, attempt),
        attempt=attempt,
        environment=variables,
        from_claims=edits,
        cdi_devices=("dra.pizza/claim=1",),
        exit=end,
    )


def output(text: str, offset: int, number: int = 0, attempt: int = 0, *, late: bool = False) -> ContainerOutput:
    size = len(text.encode())
    return ContainerOutput(container=eater(number, attempt), text=text, offset=offset, size=size, late=late)


def ended(number: int = 0, attempt: int = 0, code: int = 0) -> ContainerEnded:
    end = ExitStatus(code, "Error" if code else "Completed")
    return ContainerEnded(node="node-1", container=eater(number, attempt), exit=end)


def records() -> st.SearchStrategy[Sequence[Record]]:
    """Whole runs, with whatever may happen in whatever order."""
    number, attempt = st.integers(0, 3), st.integers(0, 1)
    metadata = st.sampled_from([{}, {}, {"deletionTimestamp": "now"}])
    phase = st.sampled_from(["Pending", "Running", "Succeeded", "Failed"])
    message = st.sampled_from(["", "no node", "too\nlate"])
    one: st.SearchStrategy[Record] = st.one_of(
        st.builds(
            lambda number, phase, metadata, change: changed(pod(number, phase, **metadata), change),
            number, phase, metadata, st.sampled_from(["ADDED", "MODIFIED", "MODIFIED", "DELETED"]),
        ),
        st.builds(lambda number, text: PodUnschedulable(pod=who(number), reason="x", message=text), number, message),
        st.builds(lambda number: PodScheduled(pod=who(number), node="node-1"), number),
        st.builds(lambda number, text: PodExplained(pod=who(number), causes=(text, "more")), number, message),
        st.builds(
            lambda number: CallStarted(
                node="node-1", driver="dra.pizza", method=PREPARE, pod_uid=who(number).uid, claims=(LUNCH,)
            ),
            number,
        ),
        st.builds(
            lambda number, error: CallEnded(
                node="node-1", driver="dra.pizza", method=PREPARE, claims=(LUNCH,), duration=0.1, pod=who(number),
                error=error,
            ),
            number, message,
        ),
        st.builds(started, number, attempt, st.none() | st.just(ExitStatus(128, "StartError", "no such file"))),
        st.builds(output, st.text(st.characters(exclude_categories=["Cs"])), st.integers(0, 9), number, attempt,
                  late=st.booleans()),
        st.builds(ended, number, attempt, st.integers(0, 1)),
        st.builds(lambda number, text: PodDeletionExplained(pod=who(number), by=text, cause=text), number, message),
        st.builds(lambda number: PodTerminating(node="node-1", pod=who(number)), number),
    )  # fmt: skip
    begin = ClusterStarted(version="v1.37.1", kubeconfig="/k", drivers=("dra.pizza",))
    end = RunEnded(drivers=("dra.pizza",), passed=False, duration=2.0, failures=("x",), api_writes={"b": 4, "a": 2})
    return st.lists(one, max_size=30).map(lambda middle: [begin, *middle, end])
