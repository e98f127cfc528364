"""A run whose pods are deleted by others: it ends at once, and says who deleted them."""

from __future__ import annotations

import asyncio
import io
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from dra_kit.author.target import load_driver
from dra_kit.client.api import Client
from dra_kit.client.resources import CONFIG_MAPS, NAMESPACES, PODS
from dra_kit.sandbox.cluster import Sandbox, SandboxSettings
from dra_kit.sandbox.drivers.sandbox_driver import SandboxDriver
from dra_kit.sandbox.records import PodDeletionExplained, Record
from dra_kit.sandbox.run.session import RunTask, SandboxSession
from dra_kit.sandbox.views.live import LiveView
from tests.unit.sandbox.cluster.kubelet.polling import until
from tests.unit.sandbox.test_sandbox import phase
from tests.unit.sandbox.timeline.feeding import watched

pytestmark = pytest.mark.processes  # containers are processes, and each test takes seconds

CASE: Final = Path(__file__).parents[3] / "data" / "cases" / "tolerated-noexecute"
TIMEOUT: Final = 300.0
"""Seconds that a run waits for pods of which it expects more."""


async def run(
    *files: Path, then: Callable[[Sandbox], Coroutine[Any, Any, None]] | None = None, timeout: float = TIMEOUT
) -> tuple[int, str]:
    """Return the exit code of a run, and what it shows; ``then`` runs once the files are applied."""
    shown, others = io.StringIO(), list[asyncio.Task[None]]()

    def ready(sandbox: Sandbox) -> None:
        if then is not None:
            others.append(asyncio.create_task(then(sandbox)))

    settings = SandboxSettings(webhook=False, controller=False)
    task, driver = RunTask(files=files, timeout=timeout), SandboxDriver((load_driver(str(CASE / "cards.py")),))
    begin = time.monotonic()
    code = await SandboxSession([driver], settings, task, LiveView(shown), ready=ready).run()
    await asyncio.gather(*others)
    assert time.monotonic() - begin < TIMEOUT
    return code, shown.getvalue()


async def test_run_fails_at_once_if_its_pod_is_evicted() -> None:
    code, text = await run(CASE / "without-effect.yaml")

    assert code == 1
    cause = (
        "evicted by device-taint-eviction-controller: device card-0 of pool node-1 has taint "
        "card.example.net/flaky:NoExecute, and request card of ResourceClaim risky tolerates it only for scheduling: a "
        "toleration without effect prevents no eviction; add effect: NoExecute"
    )
    assert f"Pod brave is being deleted\n           {cause}\n" in text
    assert f"not all pods succeeded\n           Pod default/brave was {cause}\n" in text
    assert "no pod to wait for" not in text


async def test_workload_whose_pods_are_evicted_fails_with_the_cause(tmp_path: Path) -> None:
    device_class, claim, pod = yaml.safe_load_all((CASE / "without-effect.yaml").read_text())
    template = {"metadata": {"labels": {"app": "brave"}}, "spec": {**pod["spec"], "restartPolicy": "Always"}}
    spec = {"selector": {"matchLabels": {"app": "brave"}}, "template": template}
    deployment = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "brave"}, "spec": spec}
    order = tmp_path / "order.yaml"
    order.write_text(yaml.safe_dump_all([device_class, claim, deployment]))

    evicted = (
        "Deployment default/brave has 0 of 1 pods that are ready\n"
        "             a pod was evicted by device-taint-eviction-controller: device card-0 of pool node-1 has taint "
        "card.example.net/flaky:NoExecute, and request card of ResourceClaim risky tolerates it only for scheduling"
    )
    for timeout in (3, 15, 40):  # a busy machine takes longer until a pod is evicted
        code, text = await run(order, timeout=timeout)
        assert code == 1
        if evicted in text:
            return
    raise AssertionError(text)


async def test_pod_that_tolerates_the_effect_is_not_evicted(tmp_path: Path) -> None:
    quick = tmp_path / "order.yaml"
    quick.write_text((CASE / "with-effect.yaml").read_text().replace("sleep 8", "true"))

    code, text = await run(quick)

    assert (code, "all pods succeeded" in text, "evicted" in text) == (0, True, False)


def sleeper(tmp_path: Path, command: str, **pod: Any) -> Path:
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "guest"},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "containers": [{"name": "c", "image": "busybox", "command": ["sh", "-c", command]}],
        },
    }
    path = tmp_path / "order.yaml"
    path.write_text(yaml.safe_dump_all([body, *pod.values()]))
    return path


async def test_run_fails_if_a_client_deletes_its_pod(tmp_path: Path) -> None:
    async def delete(sandbox: Sandbox) -> None:
        await until(lambda: phase(sandbox, "guest") == "Running")
        async with Client(sandbox.control_plane.credentials(), user_agent="kubectl/v1.37.1 (linux)") as kubectl:
            await kubectl.delete(PODS, "guest", "default")

    code, text = await run(sleeper(tmp_path, "sleep 300"), then=delete)

    assert code == 1
    assert "Pod guest is being deleted\n           deleted by kubectl\n" in text
    assert "not all pods succeeded\n           Pod default/guest was deleted by kubectl\n" in text


async def deletion_of(make: Callable[[Client], Coroutine[Any, Any, None]]) -> PodDeletionExplained:
    """Return the record of the first deletion of a pod that is not by the sandbox."""
    found = list[PodDeletionExplained]()

    def read(record: Record) -> None:
        if isinstance(record, PodDeletionExplained):
            found.append(record)

    async with watched(read) as sandbox:
        await make(sandbox.client)
        await until(lambda: found)
    return found[0]


def plain(name: str, **metadata: Any) -> dict[str, Any]:
    container = {"name": "c", "image": "busybox", "command": ["sleep", "300"]}
    spec = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [container]}
    return {"metadata": {"name": name, "namespace": "default", **metadata}, "spec": spec}


async def test_pod_of_a_deleted_namespace() -> None:
    async def make(client: Client) -> None:
        await client.create(NAMESPACES, {"metadata": {"name": "kitchen"}})
        await client.create(PODS, plain("guest", namespace="kitchen"))
        await client.delete(NAMESPACES, "kitchen")

    found = await deletion_of(make)

    assert str(found) == "deleted by namespace-controller: namespace kitchen is being deleted"


async def test_pod_whose_owner_is_deleted() -> None:
    async def make(client: Client) -> None:
        owner = await client.create(CONFIG_MAPS, {"metadata": {"name": "menu", "namespace": "default"}})
        reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "menu", "uid": owner["metadata"]["uid"],
                     "controller": True}  # fmt: skip
        await client.create(PODS, plain("guest", ownerReferences=[reference]))
        await client.delete(CONFIG_MAPS, "menu", "default")

    found = await deletion_of(make)

    assert str(found) == "deleted by generic-garbage-collector: its owner is ConfigMap menu, which is deleted"


async def test_pod_that_is_deleted_after_it_succeeded_does_not_fail_the_run(tmp_path: Path) -> None:
    async def delete(sandbox: Sandbox) -> None:
        await until(lambda: phase(sandbox, "guest") == "Succeeded")
        async with Client(sandbox.control_plane.credentials(), user_agent="kubectl/v1.37.1 (linux)") as kubectl:
            await kubectl.delete(PODS, "guest", "default")
        (tmp_path / "go").touch()

    slow = {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "other"},
        "spec": {"restartPolicy": "Never", "containers": [{
            "name": "c", "image": "busybox",
            "command": ["sh", "-c", f"until [ -e {tmp_path}/go ]; do sleep 0.05; done"],
        }]},
    }  # fmt: skip
    code, text = await run(sleeper(tmp_path, "true", other=slow), then=delete)

    assert code == 0, text
    assert "all pods succeeded" in text
