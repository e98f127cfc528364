"""What is known of pods at the end."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from typing_extensions import override

from dra_kit.kube.informer import Change
from dra_kit.kube.resources import DEVICE_CLASSES, PODS, RESOURCE_CLAIMS
from dra_kit.sandbox.driver.drivers import SandboxDriver
from dra_kit.sandbox.sandbox import Sandbox, SandboxSettings
from dra_kit.sandbox.timeline.recorder import PodRecorder
from tests.unit.sandbox.cluster.kubelet.polling import until
from tests.unit.sandbox.test_sandbox import CLASS, Settings, claim, new_driver, phase, pod


class LateRecorder(PodRecorder):
    """Hears of deletions when all is over."""

    def __init__(self) -> None:
        super().__init__()
        self._late: list[Change] = []
        self._listener: Any = None

    @override
    def started(self, sandbox: Sandbox) -> None:
        informers = SimpleNamespace(listen=lambda _, listener: setattr(self, "_listener", listener))
        super().started(cast("Any", SimpleNamespace(informers=informers, reports=sandbox.reports)))
        sandbox.informers.listen(PODS, self._hear)

    def _hear(self, change: Change) -> None:
        if change.type == "DELETED" or "deletionTimestamp" in change.object["metadata"]:
            self._late.append(change)
        else:
            self._listener(change)

    def hear_all(self) -> None:
        for change in self._late:
            self._listener(change)


async def test_a_pod_is_reported_as_it_was_before_its_deletion_also_if_the_kubelet_hears_of_it_first() -> None:
    recorder = LateRecorder()
    driver = SandboxDriver((new_driver(),), lambda _: Settings())
    settings = SandboxSettings(webhook=False, controller=False)
    async with Sandbox(driver, settings, observers=(recorder,)) as sandbox:
        for resource, item in ((DEVICE_CLASSES, CLASS), (RESOURCE_CLAIMS, claim("lunch"))):
            await sandbox.client.create(resource, item)
        await sandbox.client.create(PODS, pod("guest", "lunch", "sleep", "3600"))
        await until(lambda: phase(sandbox, "guest") == "Running")
        await sandbox.client.delete(PODS, "guest", "default")
        await until(lambda: ("default", "guest") not in sandbox.informers.objects(PODS))
        recorder.hear_all()

    [report] = recorder.reports()
    assert report["phase"] == "Running"
    assert [(item["reason"], item["exitCode"]) for item in report["containers"]] == [("Running", None)]


def test_of_pods_that_were_deleted_long_ago_only_their_number_is_known() -> None:
    listeners: list[Any] = []
    informers = SimpleNamespace(listen=lambda _, listener: listeners.append(listener))
    recorder = PodRecorder()
    recorder.started(cast("Any", SimpleNamespace(informers=informers, reports=lambda *_: [])))
    for number in range(1_005):
        found = {**pod(f"guest-{number}", "lunch"), "status": {}}
        found["metadata"] = {**found["metadata"], "uid": str(number)}
        for change in ("ADDED", "DELETED"):
            listeners[0](Change(change, found, None))

    reports = recorder.reports()

    assert (len(reports), reports[0]["name"], recorder.left_out) == (1_000, "guest-5", 5)
