"""A pod's life on a node, from its binding to its end."""

from __future__ import annotations

import asyncio

from dra_kit.client.api import STRATEGIC_MERGE_PATCH
from dra_kit.client.resources import CONFIG_MAPS, EVENTS, PODS, RESOURCE_CLAIMS
from tests.unit.sandbox.cluster.kubelet.driver import DRIVER
from tests.unit.sandbox.cluster.kubelet.node import NAMESPACE, Node
from tests.unit.sandbox.cluster.kubelet.pods import SLEEPER, Object, container, pod

STUBBORN = container("eater", "sh", "-c", "trap '' TERM; echo up; while :; do sleep 0.01; done")


def eater(pod: Object) -> Object:
    """The status of the first container."""
    statuses: list[Object] = pod["status"].get("containerStatuses") or [{"restartCount": 0, "state": {}}]
    return statuses[0]


async def test_a_pod_with_a_claim_from_its_binding_to_its_deletion(kitchen: Node) -> None:
    running = await kitchen.run()
    await kitchen.is_so(lambda: "PIZZA_LUNCH=funghi\n" in kitchen.output())
    assert kitchen.driver.calls == [("prepare", "lunch")]
    (status,) = running["status"]["containerStatuses"]
    assert "running" in status["state"]
    assert status["ready"]
    conditions = {item["type"]: item["status"] for item in running["status"]["conditions"]}
    assert conditions == dict.fromkeys(
        ["PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled"], "True"
    )
    assert await kitchen.events("Started") == [
        ("Pulled", 'Container image "busybox:stable" already present on machine and can be accessed by the pod'),
        ("Created", "Container created"),
        ("Started", "Container started"),
    ]
    report = kitchen.runtime.report(NAMESPACE, "guest", "eater")
    assert report is not None
    assert [mount.container_path for mount in report.config.edits.mounts] == ["/mnt/oven"]
    claim = await kitchen.client.get(RESOURCE_CLAIMS, "lunch", NAMESPACE)
    identity = f"{DRIVER}/claim=c-{claim['metadata']['uid']}"
    assert status["allocatedResourcesStatus"] == [
        {"name": "claim:lunch", "resources": [{"resourceID": identity, "health": "Unknown"}]}
    ]
    assert status["resources"] == {"claims": [{"name": "lunch"}]}
    await kitchen.leave()
    assert kitchen.driver.calls == [("prepare", "lunch"), ("unprepare", "lunch")]
    assert ("Killing", "Stopping container eater") in await kitchen.events("Killing")


async def test_a_pod_that_ends_by_itself(kitchen: Node) -> None:
    await kitchen.order("lunch")
    await kitchen.start(pod(container("eater", "true")), "lunch")
    ended = await kitchen.phase("Succeeded")
    # a final phase promises that the claim is released
    assert kitchen.driver.calls == [("prepare", "lunch"), ("unprepare", "lunch")]
    terminated = ended["status"]["containerStatuses"][0]["state"]["terminated"]
    assert (terminated["exitCode"], terminated["reason"]) == (0, "Completed")
    reasons = {item["type"]: item.get("reason") for item in ended["status"]["conditions"]}
    assert reasons["PodReadyToStartContainers"] == "PodSandboxNotReady"
    assert reasons["Ready"] == reasons["ContainersReady"] == reasons["Initialized"] == "PodCompleted"
    await kitchen.leave()


async def test_a_pod_that_fails(kitchen: Node) -> None:
    await kitchen.start(pod(container("eater", "sh", "-c", "exit 3"), container("other", "true")))
    ended = await kitchen.phase("Failed")
    codes = [item["state"]["terminated"]["exitCode"] for item in ended["status"]["containerStatuses"]]
    assert codes == [3, 0]


async def test_a_pod_is_ended_when_its_deadline_is_over(kitchen: Node) -> None:
    await kitchen.order("lunch")
    await kitchen.start(pod(container("eater", "sleep", "3600"), activeDeadlineSeconds=1), "lunch")
    ended = await kitchen.phase("Failed")
    text = "Pod was active on the node longer than the specified deadline"
    assert (ended["status"]["reason"], ended["status"]["message"]) == ("DeadlineExceeded", text)
    assert kitchen.driver.calls == [("prepare", "lunch"), ("unprepare", "lunch")]
    assert ("DeadlineExceeded", text) in await kitchen.events("DeadlineExceeded")


async def test_container_that_ignores_sigterm_is_killed_after_the_grace_period(kitchen: Node) -> None:
    await kitchen.start(pod(STUBBORN))
    await kitchen.is_so(lambda: "up" in kitchen.output())
    await kitchen.leave()
    (report,) = kitchen.runtime.reports(NAMESPACE, "guest")
    assert report.status.exit is not None
    assert report.status.exit.code == 137


async def test_debug_container_is_stopped_together_with_the_regular_ones(kitchen: Node) -> None:
    await kitchen.start(pod(STUBBORN))
    await kitchen.is_so(lambda: "up" in kitchen.output())
    told = container("doctor", "sh", "-c", "trap 'echo told; exit' TERM; echo up; while :; do sleep 0.01; done")
    change = {"spec": {"ephemeralContainers": [told]}}
    await kitchen.client.patch(
        PODS, "guest", change, NAMESPACE, content_type=STRATEGIC_MERGE_PATCH, subresource="ephemeralcontainers"
    )
    await kitchen.is_so(lambda: "up" in kitchen.output("doctor"))

    await kitchen.delete(grace=100_000)

    await kitchen.is_so(lambda: "told" in kitchen.output("doctor"))
    await kitchen.leave(grace=0)


async def test_pod_without_an_object_is_cleaned_up(kitchen: Node) -> None:
    await kitchen.run()
    await kitchen.leave(grace=0)
    await kitchen.is_so(lambda: not kitchen.runtime.pods())
    assert kitchen.driver.calls == [("prepare", "lunch"), ("unprepare", "lunch")]


async def test_a_pod_of_the_same_name_after_a_forced_deletion(kitchen: Node) -> None:
    await kitchen.start(pod(SLEEPER))
    await kitchen.phase("Running")
    await kitchen.delete(grace=0)
    await kitchen.start(pod(SLEEPER))
    again = await kitchen.phase("Running")
    await kitchen.is_so(lambda: {item.uid for item in kitchen.runtime.pods()} == {again["metadata"]["uid"]})


async def test_a_container_that_fails_is_restarted_and_then_has_to_wait(kitchen: Node) -> None:
    failing = container("eater", "sh", "-c", "exit 3")
    await kitchen.start(pod(failing, restartPolicy="Always"))
    pods = await kitchen.until(lambda item: eater(item)["restartCount"] >= 2)
    assert pods["status"]["phase"] == "Running"
    uid = pods["metadata"]["uid"]
    events = await kitchen.events("BackOff")
    assert ("BackOff", f"Back-off restarting failed container eater in pod guest_kitchen({uid})") in events
    waiting = await kitchen.until(lambda item: "waiting" in eater(item)["state"])
    (status,) = waiting["status"]["containerStatuses"]
    assert status["state"]["waiting"]["reason"] == "CrashLoopBackOff"
    assert status["state"]["waiting"]["message"].endswith(
        f"s restarting failed container=eater pod=guest_kitchen({uid})"
    )
    assert status["lastState"]["terminated"]["exitCode"] == 3


async def test_on_failure_means_until_it_succeeds(kitchen: Node) -> None:
    counting = "echo x >> ../tries; test $(wc -l < ../tries) = 2"
    await kitchen.start(pod(container("eater", "sh", "-c", counting), restartPolicy="OnFailure"))
    ended = await kitchen.phase("Succeeded")
    (status,) = ended["status"]["containerStatuses"]
    assert status["restartCount"] == 1
    assert status["lastState"]["terminated"]["exitCode"] == 1


async def test_init_containers_and_sidecars(kitchen: Node) -> None:
    sidecar = container("waiter", "sh", "-c", "echo up; exec sleep 3600", restartPolicy="Always")
    inits = [sidecar, container("cook", "sh", "-c", "echo cooked")]
    await kitchen.start(pod(container("eater", "true"), initContainers=inits))
    ended = await kitchen.phase("Succeeded")
    waiter, cook = ended["status"]["initContainerStatuses"]
    assert cook["ready"]
    assert cook["state"]["terminated"]["exitCode"] == 0
    assert waiter["state"]["terminated"]["exitCode"] == 143
    begun = {item.config.name: item.status.started for item in kitchen.runtime.reports(NAMESPACE, "guest")}
    assert begun["waiter"] < begun["cook"] < begun["eater"]


async def test_events_name_the_container_that_they_are_about(kitchen: Node) -> None:
    await kitchen.start(pod(container("eater", "true"), initContainers=[container("cook", "true")]))
    await kitchen.phase("Succeeded")
    paths: list[str] = []
    async with asyncio.timeout(60):
        while len(paths) < 2:
            found = (await kitchen.client.list(EVENTS, NAMESPACE)).items
            paths = sorted(item["regarding"]["fieldPath"] for item in found if item["reason"] == "Pulled")
    assert paths == ["spec.containers{eater}", "spec.initContainers{cook}"]


async def test_an_init_container_that_fails(kitchen: Node) -> None:
    await kitchen.start(pod(container("eater"), initContainers=[container("cook", "false")]))
    failed = await kitchen.phase("Failed")
    (status,) = failed["status"]["containerStatuses"]
    assert status["state"]["waiting"]["reason"] == "PodInitializing"
    assert {item["type"]: item["status"] for item in failed["status"]["conditions"]}["Initialized"] == "False"


async def test_missing_command_fails_the_container(kitchen: Node) -> None:
    await kitchen.start(pod(container("eater", "no-such-program")))
    failed = await kitchen.phase("Failed")
    terminated = failed["status"]["containerStatuses"][0]["state"]["terminated"]
    assert (terminated["exitCode"], terminated["reason"]) == (128, "StartError")
    assert terminated["message"].endswith('exec: "no-such-program": executable file not found in $PATH')
    assert ("Failed", f"Error: {terminated['message']}") in await kitchen.events("Failed")


async def test_missing_command_is_retried_in_a_restarting_pod(kitchen: Node) -> None:
    await kitchen.start(pod(container("eater", "no-such-program"), restartPolicy="Always"))
    waiting = await kitchen.until(lambda item: eater(item)["restartCount"] >= 1)
    (status,) = waiting["status"]["containerStatuses"]
    assert status["state"]["waiting"]["reason"] in {"RunContainerError", "CrashLoopBackOff"}
    assert status["lastState"]["terminated"]["reason"] == "StartError"


async def test_a_container_without_a_command_runs_until_it_is_deleted(kitchen: Node) -> None:
    await kitchen.start(pod({"name": "eater", "image": "nginx"}))
    await kitchen.phase("Running")
    assert "no command" in kitchen.output()
    await kitchen.leave()


async def test_the_status_is_written_only_when_it_says_something_new(kitchen: Node) -> None:
    await kitchen.start(pod(SLEEPER))
    before = await kitchen.phase("Running")
    changes = {"metadata": {"annotations": {"menu": "new"}}}
    changed = await kitchen.client.patch(PODS, "guest", changes, NAMESPACE)
    await kitchen.start(pod(SLEEPER, name="other"))
    await kitchen.phase("Running", "other")
    after = await kitchen.pod()
    assert after["status"] == before["status"]
    assert after["metadata"]["resourceVersion"] == changed["metadata"]["resourceVersion"]


async def test_a_config_map_that_comes_later(kitchen: Node) -> None:
    reference = {"name": "PIZZA", "valueFrom": {"configMapKeyRef": {"name": "menu", "key": "pizza"}}}
    await kitchen.start(pod(container("eater", "echo", "a $(PIZZA)", env=[reference])))
    waiting = await kitchen.until(lambda item: "waiting" in eater(item)["state"])
    assert waiting["status"]["phase"] == "Pending"
    assert ("Failed", 'Error: configmap "menu" not found') in await kitchen.events("Failed")
    waiting = await kitchen.until(lambda item: eater(item)["state"]["waiting"]["reason"] != "ContainerCreating")
    assert eater(waiting)["state"]["waiting"] == {
        "reason": "CreateContainerConfigError",
        "message": 'configmap "menu" not found',
    }
    await kitchen.client.create(CONFIG_MAPS, {"metadata": {"name": "menu"}, "data": {"pizza": "funghi"}}, NAMESPACE)
    await kitchen.phase("Succeeded")
    assert kitchen.output() == "a funghi\n"


async def test_readiness_follows_the_condition_of_a_readiness_gate(kitchen: Node) -> None:
    gated = pod(SLEEPER, readinessGates=[{"conditionType": "kitchen.example/hot"}])

    def is_ready(found: Object) -> tuple[str, str]:
        conditions = {item["type"]: item for item in found["status"].get("conditions") or ()}
        ready = conditions.get("Ready", {})
        return ready.get("status", ""), ready.get("reason", "")

    async def set_gate(status: str) -> None:
        change = {"status": {"conditions": [{"type": "kitchen.example/hot", "status": status}]}}
        await kitchen.client.patch(
            PODS, "guest", change, NAMESPACE, subresource="status", content_type=STRATEGIC_MERGE_PATCH
        )

    await kitchen.start(gated)
    await kitchen.until(lambda found: is_ready(found) == ("False", "ReadinessGatesNotReady"))
    await set_gate("True")
    await kitchen.until(lambda found: is_ready(found) == ("True", ""))
    await set_gate("False")
    await kitchen.until(lambda found: is_ready(found) == ("False", "ReadinessGatesNotReady"))
