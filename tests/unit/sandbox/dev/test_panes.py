"""What the screen shows, on a terminal of some size."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from dra_kit.kubelet.cdi.spec import DeviceNode, Mount, SpecEdits
from dra_kit.kubernetes.resource.objects import ClaimReference, PodReference
from dra_kit.sandbox.dev.panes import (
    CallHistory,
    Focus,
    Headline,
    Pane,
    PaneRow,
    calls_pane,
    claims_pane,
    devices_pane,
    lay_out,
    log_pane,
    pods_pane,
)
from dra_kit.sandbox.dev.screen import Screen
from dra_kit.sandbox.records import (
    PREPARE,
    UNPREPARE,
    AnsweredDevice,
    CallEnded,
    CallStarted,
    PodDeletionExplained,
)

LUNCH = ClaimReference(namespace="default", name="lunch", uid="u-1")
GUEST = PodReference("default", "guest", "p-1")


def piece(number: int, devices: list[dict[str, Any]], **spec: Any) -> dict[str, Any]:
    pool = {"name": "node-1", "generation": 3, "resourceSliceCount": 1}
    content = {"driver": "dra.pizza", "nodeName": "node-1", "pool": pool, "devices": devices, **spec}
    return {"metadata": {"name": f"slice-{number}"}, "spec": content}


def claim(name: str = "lunch", *devices: str, users: tuple[str, ...] = (), **metadata: str) -> dict[str, Any]:
    results = [{"driver": "dra.pizza", "pool": "node-1", "device": device, "request": "r"} for device in devices]
    status = {"allocation": {"devices": {"results": results}}, "reservedFor": [{"name": user} for user in users]}
    about = {"namespace": "default", "name": name, "uid": "u-1", **metadata}
    return {"metadata": about, "spec": {}, "status": status if devices else {}}


def pod(phase: str = "Running", **metadata: str) -> dict[str, Any]:
    about = {"namespace": "default", "name": "guest", "uid": "p-1", **metadata}
    return {"metadata": about, "spec": {"nodeName": "node-1"}, "status": {"phase": phase}}


def prepared(duration: float, *devices: AnsweredDevice, error: str = "") -> CallEnded:
    return CallEnded(
        node="node-1",
        driver="dra.pizza",
        method=PREPARE,
        claims=(LUNCH,),
        duration=duration,
        pod=GUEST,
        devices=devices,
        error=error,
    )


def released(duration: float, error: str = "") -> CallEnded:
    return CallEnded(
        node="node-1", driver="dra.pizza", method=UNPREPARE, claims=(LUNCH,), duration=duration, error=error
    )


def cells(pane: Pane) -> list[tuple[str, ...]]:
    return [row.cells for row in pane.rows]


def test_devices_pane_shows_holders_and_taints() -> None:
    taint = {"key": "oven", "value": "cold", "effect": "NoSchedule"}
    devices: list[dict[str, Any]] = [
        {
            "name": "pizza-0",
            "attributes": {"dough": {"string": "pan"}, "hot": {"bool": True}, "sizes": {"ints": [1, 2]}},
        },
        {"name": "pizza-1", "capacity": {"slices": {"value": "8"}}, "taints": [taint]},
    ]
    other = piece(2, [{"name": "x"}], driver="dra.other")

    pane = devices_pane(
        "dra.pizza", [piece(1, devices), other], [claim("lunch", "pizza-0"), claim("dinner", "pizza-0")]
    )

    assert pane.summary == "2 in pool node-1, generation 3, 1 slice"
    assert cells(pane) == [
        ("pizza-0", "lunch, dinner", "dough=pan hot=true sizes=1,2"),
        ("pizza-1", "free", "taint oven=cold:NoSchedule; slices=8"),
    ]


def test_screen_logs_who_deletes_a_pod() -> None:
    screen = Screen(Console(file=io.StringIO()), "dra.pizza")
    cause = "device pizza-0 of pool node-1 has taint oven:NoExecute"
    screen.read(PodDeletionExplained(pod=GUEST, by="device-taint-eviction-controller", cause=cause, evicted=True))
    screen.read(PodDeletionExplained(pod=GUEST, by="dra-kit sandbox"))

    text = "\n".join(line.plain.rstrip() for line in screen.lines(160, 12))
    assert f" Pod guest is evicted by device-taint-eviction-controller: {cause}\n" in text
    assert text.count("Pod guest") == 1


def test_devices_pane_shows_taints_of_rules() -> None:
    taint = {"key": "oven", "effect": "NoExecute"}
    selector = {"driver": "dra.pizza", "device": "pizza-1"}
    rule = {"metadata": {"name": "recall"}, "spec": {"deviceSelector": selector, "taint": taint}}

    pane = devices_pane("dra.pizza", [piece(1, [{"name": "pizza-0"}, {"name": "pizza-1"}])], [], [rule])

    assert cells(pane) == [("pizza-0", "free", ""), ("pizza-1", "free", "taint oven:NoExecute (recall)")]


def half(name: str, memory: str = "4Gi") -> dict[str, Any]:
    return {"name": name, "consumesCounters": [{"counterSet": "card", "counters": {"memory": {"value": memory}}}]}


def test_devices_pane_shows_devices_that_counters_block() -> None:
    counters = [{"name": "card", "counters": {"memory": {"value": "8Gi"}}}]
    slices = [
        piece(1, [], pool={"name": "node-1", "generation": 3, "resourceSliceCount": 2}, sharedCounters=counters),
        piece(2, [half("a"), half("b"), half("whole", "8Gi")],
              pool={"name": "node-1", "generation": 3, "resourceSliceCount": 2}),
    ]  # fmt: skip

    assert [row[:2] for row in cells(devices_pane("dra.pizza", slices, []))[1:]] == [
        ("a", "free"), ("b", "free"), ("whole", "free"),
    ]  # fmt: skip
    assert cells(devices_pane("dra.pizza", slices, [claim("lunch", "a")]))[1:] == [
        ("a", "lunch", ""),
        ("b", "free", ""),
        ("whole", "blocked", "counter memory of card has 4Gi left, 8Gi needed"),
    ]
    watching = claim("watch", "a")
    watching["status"]["allocation"]["devices"]["results"][0]["adminAccess"] = True
    assert [row[:2] for row in cells(devices_pane("dra.pizza", slices, [watching]))[1:]] == [
        ("a", "watch"), ("b", "free"), ("whole", "free"),
    ]  # fmt: skip


def test_overdrawn_counter_blocks_all_devices_with_counters() -> None:
    counters = [{"name": name, "counters": {"memory": {"value": "8Gi"}}} for name in ("card", "other")]
    far = {"name": "far", "consumesCounters": [{"counterSet": "other", "counters": {"memory": {"value": "1Gi"}}}]}
    slices = [piece(1, [half("a", "6Gi"), half("b", "6Gi"), far, {"name": "plain"}], sharedCounters=counters)]

    pane = devices_pane("dra.pizza", slices, [claim("lunch", "a"), claim("dinner", "b")])

    assert cells(pane)[-2:] == [("far", "blocked", "counter memory of card is overdrawn"), ("plain", "free", "")]


def test_devices_pane_shows_devices_in_use_that_are_not_published() -> None:
    pane = devices_pane("dra.pizza", [piece(1, [{"name": "pizza-0"}])], [claim("lunch", "pizza-1")])

    assert cells(pane) == [("pizza-0", "free", ""), ("pizza-1", "lunch", "in use and not published now")]
    # while the slices of a new generation are written
    half_written = {"name": "node-1", "generation": 4, "resourceSliceCount": 2}
    assert len(cells(devices_pane("dra.pizza", [piece(1, [], pool=half_written)], [claim("lunch", "pizza-1")]))) == 1


def test_devices_pane_shows_pools_and_counters_or_missing_slices() -> None:
    counters = [{"name": "card", "counters": {"memory": {"value": "8Gi"}}}]
    one = piece(1, [], sharedCounters=counters)
    two = piece(2, [{"name": "a"}], pool={"name": "shelf", "generation": 1}, nodeName="node-2")

    pane = devices_pane("dra.pizza", [two, one], [])

    assert pane.summary == "1 in 2 pools"
    assert [row[0] for row in cells(pane)] == [
        "pool node-1, generation 3, 1 slice",
        "counters card: 8Gi memory",
        "pool shelf on node-2, generation 1, 1 slice",
        "a",
    ]
    assert cells(devices_pane("dra.pizza", [], [])) == [("no ResourceSlice is published",)]


def test_claims_pane_shows_the_state_of_each_claim() -> None:
    calls = CallHistory()
    reasons = {("default", "lunch"): "request pizza: 2 devices do not fit"}

    def shown(item: dict[str, Any]) -> tuple[str, ...]:
        return cells(claims_pane([item], reasons, calls.prepared))[0]

    assert shown(claim()) == ("lunch", "pending", "request pizza: 2 devices do not fit")
    assert shown(claim("other")) == ("other", "pending", "no pod that asks for it is waiting")
    assert shown(claim("lunch", "pizza-0")) == ("lunch", "allocated", "pizza-0")
    calls.read(prepared(0.1, error="no\noven"))
    assert shown(claim("lunch", "pizza-0")) == ("lunch", "not prepared", "pizza-0: no oven")
    calls.read(prepared(0.1))
    assert shown(claim("lunch", "pizza-0", users=("guest",))) == ("lunch", "prepared", "pizza-0 for guest")
    assert shown(claim("lunch", "pizza-0", deletionTimestamp="now")) == ("lunch", "deleting", "pizza-0")
    calls.read(released(0.1))
    assert shown(claim("lunch", "pizza-0"))[1] == "allocated"


def test_pods_pane_shows_edits_or_the_reason_to_wait() -> None:
    edits = SpecEdits(
        env=("CHEESE=brie",),
        device_nodes=(DeviceNode(path="/dev/oven"),),
        mounts=(Mount(host_path="/a", container_path="/srv/oven"),),
    )

    def shown(item: dict[str, Any]) -> tuple[str, ...]:
        return cells(pods_pane([item], {"p-1": [edits, edits]}, {"p-1": "no\ndevice"}))[0]

    assert shown(pod()) == ("guest", "Running", "node-1", "CHEESE=brie, /dev/oven, mount /srv/oven")
    assert shown(pod("Pending")) == ("guest", "Pending", "node-1", "no device")
    assert shown(pod(deletionTimestamp="now"))[1] == "Terminating"
    assert "-f pod.yaml" in cells(pods_pane([], {}, {}))[0][0]


def test_calls_pane_shows_results_newest_first() -> None:
    calls = CallHistory()
    calls.read(CallStarted(node="node-1", driver="dra.pizza", method=PREPARE, pod_uid="p-1", claims=(LUNCH,)))
    [row] = cells(calls_pane(calls.newest_first))
    assert row[1:] == ("NodePrepareResources", "…", "lunch: not answered yet")

    calls.read(prepared(0.0123, AnsweredDevice("node-1", "pizza-0")))
    calls.read(released(0.5, error="no\nway"))

    assert [row[1:] for row in cells(calls_pane(calls.newest_first))] == [
        ("NodeUnprepareResources", "500.0 ms", "lunch: no way"),
        ("NodePrepareResources", "12.3 ms", "lunch: pizza-0"),
    ]


def drawn(
    panes: list[Pane], width: int, height: int, *, focus: Focus | None = None, news: str = "it serves"
) -> list[str]:
    """The lines of a terminal of that size."""
    lines = lay_out(
        Headline("dra-kit dev", [(news, "green")]), panes, "q quit", width=width, height=height, focus=focus or Focus()
    )
    console = Console(width=width, height=height, color_system=None)
    with console.capture() as captured:
        console.print(*lines, sep="\n")
    return captured.get().splitlines()


def panes(devices: int = 40) -> list[Pane]:
    rows = tuple(PaneRow((f"device-{number}", "free", "attribute=" + "x" * 100)) for number in range(devices))
    return [
        Pane("Devices", rows),
        Pane("Pods", (PaneRow(("guest", "Running")),)),
        log_pane(f"line {i}" for i in range(99)),
    ]


@pytest.mark.parametrize(("width", "height"), [(80, 24), (200, 60), (40, 12), (20, 6), (10, 3), (1, 1)])
def test_every_line_fits_any_terminal(width: int, height: int) -> None:
    lines = drawn(panes(), width, height, news="a rather long text about what is wrong at src/leds/driver.py:31")

    assert len(lines) == height
    assert all(len(line) <= width for line in lines)


def test_panes_share_the_lines_and_count_hidden_rows() -> None:
    lines = drawn(panes(), 80, 24)

    assert lines[0].startswith("dra-kit dev")
    assert lines[1] == "it serves"
    assert lines[2].startswith("1 Devices ──")
    assert lines[3].startswith("device-0  free  attribute=xxx")
    assert lines[3].endswith("…")
    [more] = [line for line in lines if line.startswith("… and ")]
    shown = sum(line.startswith("device-") for line in lines)
    assert more == f"… and {40 - shown} more"
    assert "guest  Running" in lines
    assert lines[-2] == "line 98"
    assert lines[-1] == "q quit"


def test_focused_pane_scrolls_to_both_ends() -> None:
    focus = Focus(0, offset=1000)
    lines = drawn(panes(), 80, 24, focus=focus)
    assert lines[-2].startswith("device-39")
    assert focus.offset == 40 - 20

    log = Focus(2, offset=1000)
    assert drawn(panes(), 80, 24, focus=log)[3] == "line 0"


def test_control_characters_in_the_panes_are_escaped() -> None:
    pane = log_pane(["\x1b[2Jgone", "a\rb"])

    lines = drawn([pane], 80, 10, news="\x1b]0;owned\x07")

    assert lines[1] == "\\x1b]0;owned\\x07"
    assert "\\x1b[2Jgone" in lines
    assert "a\\rb" in lines
