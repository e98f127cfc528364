"""What of a sandbox becomes records."""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import pytest
from typing_extensions import override

import dra_kit as dra
from dra_kit.client.resources import DEVICE_CLASSES, PODS, RESOURCE_CLAIMS, SECRETS
from dra_kit.errors import SandboxError
from dra_kit.kubelet.cdi.spec import Hook, Mount, SpecEdits
from dra_kit.kubernetes.resource.objects import PodReference
from dra_kit.sandbox.cluster import Sandbox, SandboxSettings
from dra_kit.sandbox.controllers.certificates import CERTIFICATES, ISSUERS, serve_certificate_kinds
from dra_kit.sandbox.drivers.sandbox_driver import SandboxDriver
from dra_kit.sandbox.records import (
    PREPARE,
    AnsweredDevice,
    CallEnded,
    CallStarted,
    CdiSpecWritten,
    ClusterEnding,
    ContainerEnded,
    ContainerOutput,
    ContainerReference,
    ContainerStarted,
    DriverEnded,
    DriverLogged,
    DriverStarting,
    ExitStatus,
    HookFailed,
    ObjectChanged,
    PodExplained,
    PodScheduled,
    PodUnschedulable,
    Record,
    RunEnded,
    RunReported,
)
from dra_kit.sandbox.timeline.feed import FILE, RECORDED, DriverLogRecorder, TimelineFeed
from dra_kit.sandbox.timeline.recording import Recording, Timeline
from tests.unit.sandbox.cluster.kubelet.polling import until
from tests.unit.sandbox.test_sandbox import CLASS, Oven, PizzaConfig, Settings, Waiter, claim, new_driver, phase, pod
from tests.unit.sandbox.timeline.feeding import feeding

Kind = TypeVar("Kind", bound=Record)


def of(kind: type[Kind], records: Sequence[Record]) -> list[Kind]:
    return [record for record in records if isinstance(record, kind)]


async def test_records_of_a_pod_from_creation_to_deletion() -> None:
    records: list[Record] = []
    driver = SandboxDriver((new_driver(),), lambda _: Settings())
    settings = SandboxSettings(webhook=False, controller=False)
    async with Sandbox(driver, settings, observers=(feeding(records.append),)) as sandbox:
        await sandbox.client.create(DEVICE_CLASSES, CLASS)
        await sandbox.client.create(RESOURCE_CLAIMS, claim("lunch", "device.attributes['dra.pizza'].oven == 'hot'"))
        await sandbox.client.create(PODS, pod("picky", "lunch", "true"))
        await until(lambda: bool(of(PodUnschedulable, records)))
        await sandbox.client.create(RESOURCE_CLAIMS, claim("dinner"))
        await sandbox.client.create(PODS, pod("guest", "dinner", "sh", "-c", "printf 'one\\ntwo'; exit 3"))
        await until(lambda: phase(sandbox, "guest") == "Failed")
        file = sandbox.directory / FILE
        await until(lambda: b'"ContainerEnded"' in file.read_bytes())
        assert file.stat().st_mode & 0o777 == 0o600
        written = list(Recording(file).records())

    assert records[: len(written)] == written
    [refusal] = {(item.pod.name, item.reason) for item in of(PodUnschedulable, records)}
    assert refusal == ("picky", "Unschedulable")
    [scheduled] = of(PodScheduled, records)
    assert (scheduled.pod.name, scheduled.node) == ("guest", "node-1")
    [device] = scheduled.devices
    assert (device.claim, device.request, device.pool, device.device) == ("dinner", "pizza", "node-1", "pizza")
    [begun] = [item for item in of(CallStarted, records) if item.method == PREPARE]
    [ended] = [item for item in of(CallEnded, records) if item.method == PREPARE]
    assert begun.claims == ended.claims
    assert (ended.node, ended.driver, ended.error) == ("node-1", "dra.pizza", "")
    [prepared] = ended.devices
    assert prepared == AnsweredDevice("node-1", "pizza", prepared.cdi_devices)
    [spec] = of(CdiSpecWritten, records)
    assert ended.claims[0].uid in spec.file
    [started], [end] = of(ContainerStarted, records), of(ContainerEnded, records)
    assert started.environment["CHEESE"] == "false"
    assert started.from_claims.env == ("CHEESE=false",)
    assert end.exit == ExitStatus(3, "Error")
    outputs = of(ContainerOutput, records)
    assert "".join(item.text for item in outputs) == "one\ntwo"
    assert outputs[-1].last
    changes = [item.object["metadata"]["name"] for item in of(ObjectChanged, records) if item.resource == "pods"]
    assert set(changes) == {"picky", "guest"}
    order = [scheduled, begun, ended, spec, started, *outputs, end, *of(ClusterEnding, records)]
    assert order == sorted(order, key=lambda item: item.number)


async def test_records_of_a_restarted_driver_and_its_log() -> None:
    class Talking(Oven):
        @override
        def discover(self) -> Iterator[Sequence[dra.Device]]:
            logging.getLogger("pizzeria").warning("the oven is %s", "cold")
            yield from super().discover()

    def talking() -> dra.Driver[PizzaConfig, dra.Device]:
        return dra.Driver("dra.pizza", provider=Talking(), preparer=Waiter(), settings=Settings)

    records: list[Record] = []
    driver = SandboxDriver((talking(),), lambda _: Settings(), spare=talking())
    settings = SandboxSettings(webhook=False, controller=False)
    async with Sandbox(driver, settings, observers=(feeding(records.append),)) as sandbox:
        await sandbox.nodes[0].drivers["dra.pizza"].restart(driver.release(Settings()))
        await until(lambda: len([item for item in of(DriverLogged, records) if "cold" in item.text]) >= 2)

    logged = next(item for item in of(DriverLogged, records) if "cold" in item.text)
    assert (logged.driver, logged.level) == ("dra.pizza", "WARNING")
    life = [record for record in records if isinstance(record, DriverStarting | DriverEnded)]
    assert [(type(item).__name__, item.node, getattr(item, "how", "")) for item in life] == [
        ("DriverStarting", "node-1", ""),
        ("DriverEnded", "node-1", "stopped"),
        ("DriverStarting", "node-1", ""),
        ("DriverEnded", "node-1", "stopped"),
    ]


async def test_log_lines_above_the_rate_limit_are_left_out() -> None:
    records: list[DriverLogged] = []
    now = [0.0]
    lines = DriverLogRecorder("dra.pizza", records.append, lambda: now[0])
    one = logging.makeLogRecord({"levelname": "INFO"})

    def log(number: int) -> None:
        for _ in range(number):
            lines.logged(one, "hot")

    await asyncio.to_thread(log, 5_007)
    await until(lambda: len(records) == 5_000)
    now[0] = 1.0
    await asyncio.to_thread(log, 1)
    await until(lambda: len(records) == 5_001)

    assert (records[-2].left_out, records[-1].left_out) == (0, 7)
    assert {(item.driver, item.level, item.text) for item in records} == {("dra.pizza", "INFO", "hot")}


async def test_failed_driver_start_is_reported() -> None:
    class Broken(Oven):
        @override
        def startup(self, context: dra.Context[Settings]) -> None:
            raise RuntimeError("no gas")

    records: list[Record] = []
    driver = dra.Driver("dra.pizza", provider=Broken(), preparer=Waiter(), settings=Settings)
    made, settings = SandboxDriver((driver,), lambda _: Settings()), SandboxSettings(webhook=False, controller=False)
    with pytest.raises(SandboxError, match=r"node role on node-1 ended.*no gas"):
        async with Sandbox(made, settings, observers=(feeding(records.append),)):
            pass

    [failed] = [item for item in of(DriverEnded, records) if item.how == "failed"]
    assert (failed.driver, failed.node) == ("dra.pizza", "node-1")
    assert failed.message == "exit code 1"


SECRET = "correct-horse-battery"
SETTINGS = SandboxSettings(webhook=False, controller=False)


async def test_data_of_secrets_is_not_in_the_file(tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    timeline = Timeline()
    feed = TimelineFeed(timeline, file)
    shown: list[Record] = []
    timeline.subscribe(shown.append)
    script = (
        'printf \'%s\' "recipe: ${RECIPE%??????}"; sleep 0.3; echo "${RECIPE#???????????????}"; '
        "echo pin $PIN $RECIPE; printf '%s' \"$1\" > /dev/termination-log; sleep 0.1; exit 3"
    )
    guest = pod("guest", "lunch", "sh", "-c", script, "sh", "$(RECIPE)")
    container = guest["spec"]["containers"][0]
    container["env"] = [
        {"name": "RECIPE", "valueFrom": {"secretKeyRef": {"name": "recipes", "key": "recipe"}}},
        {"name": "TEXT", "value": "the recipe is $(RECIPE)"},
    ]
    container["envFrom"] = [{"secretRef": {"name": "pins"}}]
    settings = SandboxSettings(webhook=False, controller=False)
    driver = SandboxDriver((new_driver(),), lambda _: Settings())
    async with Sandbox(driver, settings, observers=(feed,)) as sandbox:
        for name, data in (("recipes", {"recipe": SECRET}), ("pins", {"PIN": "4"})):
            secret = {"metadata": {"name": name}, "stringData": data}
            await sandbox.client.create(SECRETS, secret, "default")
        await sandbox.client.create(DEVICE_CLASSES, CLASS)
        await sandbox.client.create(RESOURCE_CLAIMS, claim("lunch"))
        await sandbox.client.create(PODS, guest)
        await until(lambda: phase(sandbox, "guest") == "Failed")
    feed.close()

    text = file.read_text()
    assert SECRET not in text
    assert "orse" not in text
    assert "attery" not in text
    assert base64.b64encode(SECRET.encode()).decode() not in text
    recorded = list(Recording(file).records())
    [started] = of(ContainerStarted, recorded)
    assert {name: started.environment[name] for name in ("RECIPE", "TEXT", "PIN")} == {
        "RECIPE": "(removed)", "TEXT": "the recipe is (removed)", "PIN": "(removed)",
    }  # fmt: skip
    assert started.command[-1] == "(removed)"
    assert "pin 4 (removed)\n" in "".join(item.text for item in of(ContainerOutput, recorded))
    assert of(ContainerStarted, shown)[0].environment["RECIPE"] == SECRET


async def test_secrets_that_controllers_follow_are_not_in_the_file(tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    feed = TimelineFeed(Timeline(), file)
    of_certificate = {"issuerRef": {"name": "own"}, "secretName": "oven-tls", "dnsNames": ["oven.default.svc"]}
    async with Sandbox(SandboxDriver((new_driver(),), lambda _: Settings()), SETTINGS, observers=(feed,)) as sandbox:
        unused = {"metadata": {"name": "unused"}, "stringData": {"recipe": SECRET}}
        await sandbox.client.create(SECRETS, unused, "default")
        await serve_certificate_kinds(sandbox.client)
        await sandbox.client.create(ISSUERS, {"metadata": {"name": "own"}, "spec": {}}, "default")
        made = {"metadata": {"name": "oven"}, "spec": of_certificate}
        await sandbox.client.create(CERTIFICATES, made, "default")
        followed = sandbox.informers.objects(SECRETS)
        await until(lambda: {("default", "unused"), ("default", "oven-tls")} <= followed.keys())
        await until(lambda: b"Certificate is up to date" in file.read_bytes())
        kinds = set(sandbox.informers.resources)
    feed.close()

    changes = of(ObjectChanged, list(Recording(file).records()))
    assert "certificates.cert-manager.io" in {item.resource for item in changes}
    assert SECRETS.full_name not in {item.resource for item in changes}
    assert base64.b64encode(SECRET.encode()).decode() not in file.read_text()
    assert kinds - set(RECORDED) == {SECRETS}


async def test_what_a_run_reports_about_a_pod_has_no_data_of_its_secrets(tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    timeline = Timeline()
    feed = TimelineFeed(timeline, file)
    guest = pod("guest", "lunch", "no-such-program", "$(RECIPE)")
    source = {"secretKeyRef": {"name": "recipes", "key": "recipe"}}
    guest["spec"]["containers"][0]["env"] = [{"name": "RECIPE", "valueFrom": source}]
    secret, about = "it's a 'correct' \"horse\"\nand a battery-staple", PodReference("default", "guest", "1")
    async with Sandbox(SandboxDriver((new_driver(),), lambda _: Settings()), SETTINGS, observers=(feed,)) as sandbox:
        await sandbox.client.create(
            SECRETS, {"metadata": {"name": "recipes"}, "stringData": {"recipe": secret}}, "default"
        )
        await sandbox.client.create(DEVICE_CLASSES, CLASS)
        await sandbox.client.create(RESOURCE_CLAIMS, claim("lunch"))
        await sandbox.client.create(PODS, guest)
        await until(lambda: b'"ContainerStarted"' in file.read_bytes())
        await sandbox.client.delete(PODS, "guest", "default", grace_period_seconds=0)
        await until(lambda: b'"DELETED"' in file.read_bytes())
    got = f"story: output: expected contains 'x', got {secret!r}"
    cut = f"story: output: expected contains 'x', got {f'… {secret[-30:]}'!r}"
    feed.acted(HookFailed(node="node-1", pod=about, message=got))
    feed.acted(
        ContainerEnded(
            node="node-1", container=ContainerReference(about, "eater", "1"), exit=ExitStatus(1, "Error", got)
        )
    )
    timeline.append(RunReported(text=got, details=(cut,)))
    timeline.append(PodExplained(pod=about, causes=(got,)))
    timeline.append(RunEnded(passed=False, duration=1.0, failures=(got, cut)))
    feed.close()

    text = file.read_text()
    assert "correct" not in text
    assert "staple" not in text
    [end] = of(RunEnded, list(Recording(file).records()))
    assert [item.split("got")[0] for item in end.failures] == ["story: output: expected contains 'x', "] * 2


async def test_what_drivers_hooks_and_annotations_quote_of_a_secret_is_not_in_the_file(tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    feed = TimelineFeed(Timeline(), file)
    guest = pod("guest", "lunch", "true")
    guest["metadata"]["annotations"] = {"note": f"opens with {SECRET}", "resource.example.com/name": "guest"}
    guest["spec"]["containers"][0]["env"] = [{"name": "TEXT", "value": f"also {SECRET}"}]
    guest["spec"]["volumes"] = [{"name": "recipe", "secret": {"secretName": "recipes", "optional": True}}]
    asking = claim("lunch")
    asking["metadata"]["annotations"] = {"note": f"for {SECRET}"}
    edits = SpecEdits(
        env=(f"RECIPE={SECRET}", "CHEESE=gouda"),
        hooks=(Hook(hook_name="createRuntime", path="/bin/open", args=("open", SECRET), env=(f"KEY={SECRET}",)),),
        mounts=(Mount(host_path=f"/tmp/{SECRET}", container_path="/recipe"),),
    )
    spec = {
        "kind": "dra.pizza/claim",
        "devices": [{"name": "pizza", "containerEdits": edits.model_dump(mode="json", by_alias=True)}],
        "annotations": {"note": SECRET},
    }
    async with Sandbox(SandboxDriver((new_driver(),), lambda _: Settings()), SETTINGS, observers=(feed,)) as sandbox:
        secret = {"metadata": {"name": "recipes"}, "stringData": {"recipe": SECRET}}
        await sandbox.client.create(SECRETS, secret, "default")
        created = await sandbox.client.create(PODS, guest)
        await sandbox.client.create(RESOURCE_CLAIMS, asking)
        await until(lambda: ("default", "lunch") in sandbox.informers.objects(RESOURCE_CLAIMS))
        await until(lambda: ("default", "guest") in sandbox.informers.objects(PODS))
        own = PodReference("default", "guest", created["metadata"]["uid"])
        for about, number in ((own, "1"), (PodReference("default", "guest", "former"), "2")):
            container = ContainerReference(about, "eater", number)
            feed.acted(ContainerStarted(node="node-1", container=container, from_claims=edits, from_hooks=edits))
        feed.acted(CdiSpecWritten(node="node-1", driver="dra.pizza", file="pizza.json", spec=spec))
    feed.close()

    assert SECRET not in file.read_text()
    recorded = list(Recording(file).records())
    known, former = of(ContainerStarted, recorded)
    assert known.from_claims.env == ("RECIPE=(removed)", "CHEESE=gouda")
    assert known.from_hooks.hooks[0].args == ("open", "(removed)")
    assert former.from_claims.env == ("RECIPE=(removed)", "CHEESE=(removed)")
    assert former.from_hooks.hooks[0].args == ("(removed)", "(removed)")
    [written] = of(CdiSpecWritten, recorded)
    assert written.spec["devices"][0]["containerEdits"]["mounts"][0]["hostPath"] == "/tmp/(removed)"
    changes = [item.object for item in of(ObjectChanged, recorded)]
    notes = [item["metadata"]["annotations"]["note"] for item in changes if item["metadata"]["name"] == "guest"]
    assert set(notes) == {"opens with (removed)"}


@pytest.mark.parametrize("change", ["deleted", "changed"])
async def test_a_secret_that_goes_before_its_container_starts_is_not_in_the_file(tmp_path: Path, change: str) -> None:
    file = tmp_path / "run.jsonl"
    feed = TimelineFeed(Timeline(), file)
    guest = pod("guest", "absent", "true")
    guest["spec"]["volumes"] = [{"name": "recipe", "secret": {"secretName": "recipes", "optional": True}}]
    async with Sandbox(SandboxDriver((new_driver(),), lambda _: Settings()), SETTINGS, observers=(feed,)) as sandbox:
        secret = {"metadata": {"name": "recipes"}, "stringData": {"recipe": SECRET}}
        await sandbox.client.create(SECRETS, secret, "default")
        if change == "deleted":
            await sandbox.client.delete(SECRETS, "recipes", "default")
        else:
            await sandbox.client.patch(SECRETS, "recipes", {"stringData": {"recipe": "another"}}, "default")
        await sandbox.client.create(PODS, guest)
        await until(lambda: ("default", "guest") in sandbox.informers.objects(PODS))
        feed.acted(DriverLogged(driver="dra.pizza", text=f"recipe {SECRET}"))
    feed.close()

    assert SECRET not in file.read_text()
    assert "recipe (removed)" in file.read_text()


async def test_a_secret_that_comes_after_its_pod_is_not_in_the_file(tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    feed = TimelineFeed(Timeline(), file)
    guest = pod("guest", "absent", "true")
    guest["spec"]["volumes"] = [{"name": "recipe", "secret": {"secretName": "recipes"}}]
    async with Sandbox(SandboxDriver((new_driver(),), lambda _: Settings()), SETTINGS, observers=(feed,)) as sandbox:
        await sandbox.client.create(PODS, guest)
        await until(lambda: ("default", "guest") in sandbox.informers.objects(PODS))
        secret = {"metadata": {"name": "recipes"}, "stringData": {"recipe": SECRET}}
        await sandbox.client.create(SECRETS, secret, "default")
        feed.acted(DriverLogged(driver="dra.pizza", text=f"recipe {SECRET}"))
    feed.close()

    assert SECRET not in file.read_text()


async def test_environment_of_a_pod_that_is_gone_is_not_in_the_file(tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    feed = TimelineFeed(Timeline(), file)
    async with Sandbox(SandboxDriver((new_driver(),), lambda _: Settings()), SETTINGS, observers=(feed,)) as sandbox:
        await sandbox.client.create(PODS, pod("guest", "lunch", "true"))
        await until(lambda: ("default", "guest") in sandbox.informers.objects(PODS))
        former = ContainerReference(PodReference("default", "guest", "former"), "eater", "1")
        environment, how = {"RECIPE": SECRET, "EMPTY": ""}, ExitStatus(128, "StartError", f"no {SECRET}")
        feed.acted(
            ContainerStarted(
                node="node-1", container=former, command=("eat", SECRET), environment=environment, exit=how
            )
        )
        feed.acted(ContainerOutput(container=former, text=f"recipe {SECRET}\n", offset=0, size=1))
    feed.close()

    assert SECRET not in file.read_text()
    [started] = of(ContainerStarted, list(Recording(file).records()))
    assert (set(started.environment), len(started.command)) == ({"RECIPE", "EMPTY"}, 2)
    [output] = of(ContainerOutput, list(Recording(file).records()))
    assert output.text == "recipe (removed)\n"
