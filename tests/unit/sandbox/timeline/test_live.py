"""Entries of the live view."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from typing import ClassVar

import yaml

import dra_kit as dra
from dra_kit.author.target import load_driver
from dra_kit.client.resources import DEVICE_CLASSES, DEVICE_TAINT_RULES, PODS, RESOURCE_CLAIM_TEMPLATES
from dra_kit.kubelet.cdi.store import spec_file_name, temporary_file_name
from dra_kit.kubernetes.release import Release
from dra_kit.sandbox.cluster import Sandbox, SandboxSettings
from dra_kit.sandbox.containers.log import LIMIT
from dra_kit.sandbox.drivers.sandbox_driver import SandboxDriver
from dra_kit.sandbox.views.live import LiveView
from tests.unit.project.projects import PROJECTS
from tests.unit.sandbox.cluster.kubelet.polling import until
from tests.unit.sandbox.test_sandbox import phase, pod
from tests.unit.sandbox.timeline.feeding import feeding, watched

# more than is kept of the output, then a pause until the file is there, then a last word
LOUD = f"yes | head -c {LIMIT}; echo; echo full; until [ -e go ]; do sleep 0.05; done; printf 'and\\nthe end'"


async def test_end_of_long_output_is_shown() -> None:
    shown = io.StringIO()

    def tells(text: str) -> bool:
        return text in shown.getvalue()

    async with watched(LiveView(shown).read) as sandbox:
        await sandbox.client.create(PODS, pod("guest", "lunch", "sh", "-c", LOUD))
        await until(lambda: tells("| full\n"))
        [report] = sandbox.nodes[0].runtime.reports("default", "guest")
        assert report.log.begin.line > 0
        for directory in (sandbox.nodes[0].directory / "containers").iterdir():
            (directory / "go").touch()
        await until(lambda: phase(sandbox, "guest") == "Succeeded" and tells("| the end\n"))

    assert shown.getvalue().count("| and\n") == 1


async def test_unfinished_cdi_file_is_not_recorded() -> None:
    shown = io.StringIO()

    async with watched(LiveView(shown).read) as sandbox:
        half = sandbox.nodes[0].cdi_dir / temporary_file_name(spec_file_name("dra.pizza", "of-another-claim"), "1")
        half.write_text('{"cdiVersion"')
        await sandbox.client.create(PODS, pod("guest", "lunch", "true"))
        await until(lambda: phase(sandbox, "guest") == "Succeeded")
        half.unlink()

    assert "CHEESE=false" in shown.getvalue()
    assert half.name not in shown.getvalue()


async def view_of(kind: str, devices: int, *, without: Sequence[str] = ()) -> str:
    """Return the view of a new project of a kind, its devices and its demo's claim, without some feature gates."""
    shown = io.StringIO()
    view = LiveView(shown)
    project = PROJECTS / f"{kind}-driver"
    driver = load_driver(str(project))
    settings = driver.settings
    assert settings is not None
    made = SandboxDriver((driver,), settings.model_validate, values={"devices": devices})
    [one] = yaml.safe_load_all((project / "deviceclasses.yaml").read_text())
    template, guest = yaml.safe_load_all((project / "demo" / "pod.yaml").read_text())
    for item in (template, guest):
        item["metadata"]["namespace"] = "default"
    gates = Release.of().without(*without)
    how = SandboxSettings(release=gates, webhook=False, controller=False)
    async with Sandbox(made, how, observers=(feeding(view.read),)) as sandbox:
        for resource, item in ((DEVICE_CLASSES, one), (RESOURCE_CLAIM_TEMPLATES, template), (PODS, guest)):
            await sandbox.client.create(resource, item)
        await until(lambda: " has started and gets from its claims" in shown.getvalue())
    return shown.getvalue()


async def test_counter_sets_are_shown_and_equal_slices_are_named() -> None:
    shown = await view_of("partitionable", 2)
    for card in ("card-0", "card-1"):
        counters = f"{card}: 1 slice-0, 1 slice-1, 1 slice-2, 1 slice-3"
        assert f"has 1 counter set on node-1 in pool node-1/{card}\n           {counters}\n" in shown
    assert "offers no devices" not in shown


async def test_requested_capacity_is_shown() -> None:
    shown = await view_of("shared", 1)
    assert "a device of class shared-driver.example.com\n             2Gi of its memory\n" in shown


async def test_share_without_consumable_capacity_is_the_whole_device() -> None:
    shown = await view_of("shared", 1, without=["DRAConsumableCapacity"])
    assert "DEVICE_0_MEMORY=16Gi\n" in shown


async def test_all_edits_of_a_container_are_shown() -> None:
    class Everything(dra.Preparer):
        def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
            return dra.Prepared(
                hooks=[dra.Hook(hook_name="createContainer", path="/opt/link")],
                net_devices=[dra.NetDevice(host_interface_name="eth1", name="net1")],
                additional_gids=[44],
            )

    class Ports(dra.DeviceProvider):
        def discover(self) -> Iterator[dra.Inventory]:
            yield dra.Inventory(pools=[dra.Pool(name="node-1/card", devices=[dra.Device(name="port-0")])])

    shown = io.StringIO()
    driver = dra.Driver("dra.pizza", provider=Ports(), preparer=Everything())
    async with watched(LiveView(shown).read, driver=SandboxDriver((driver,))) as sandbox:
        await sandbox.client.create(PODS, pod("guest", "lunch", "true"))
        await until(lambda: phase(sandbox, "guest") == "Succeeded")
    assert "offers 1 device on node-1 in pool node-1/card\n" in shown.getvalue()
    entry = shown.getvalue().partition("has started and gets from its claims:\n")[2].partition("\n\n")[0]
    assert [line.strip() for line in entry.splitlines()] == [
        "hook createContainer /opt/link (not applied here)",
        "interface eth1 as net1 (not applied here)",
        "groups 44 (not applied here)",
    ]


async def test_control_characters_in_names_messages_and_output_are_escaped() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    shown = Terminal()
    # the second of them clears the screen, the third forges an entry
    output = [
        "\\033]0;owned\\007",
        "\\033[2J",
        "\\r  0.00 s all pods succeeded",
        "\\302\\2331m",
        "\\342\\200\\256txt",
    ]

    async with watched(LiveView(shown).read) as sandbox:
        guest = pod("guest", "lunch", "sh", "-c", f"printf '{'  '.join(output)}'")
        guest["spec"]["containers"][0]["env"] = [{"name": "A", "value": "\x1b[31m"}]
        await sandbox.client.create(PODS, guest)
        await until(lambda: phase(sandbox, "guest") == "Succeeded")

    view_styles = {"\x1b[1m", "\x1b[0m", *(f"\x1b[{number}m" for number in range(30, 38))}
    text = shown.getvalue()
    for style in view_styles:
        text = text.replace(style, "")
    assert all(char.isprintable() or char == "\n" for char in text)
    assert r"| \x1b]0;owned\x07  \x1b[2J  \r  0.00 s all pods succeeded  \x9b1m  \u202etxt" in text


def test_multiline_message_does_not_look_like_an_entry() -> None:
    shown = io.StringIO()
    view = LiveView(shown)

    view.entry("a name\n  0.00 s all pods succeeded")
    view.detail("a message\n  0.00 s all pods succeeded\r\x1b[A")

    assert shown.getvalue().splitlines()[1:] == [
        "           a message",
        r"             0.00 s all pods succeeded\r\x1b[A",
    ]
    assert r"a name\n  0.00 s" in shown.getvalue()


async def test_pod_of_a_device_that_is_gone_is_evicted_by_a_taint_rule() -> None:
    class Ovens(dra.DeviceProvider):
        names: ClassVar[list[str]] = ["pizza-0", "pizza-1"]

        def discover(self) -> Iterator[Sequence[dra.Device]]:
            yield [dra.Device(name=name) for name in self.names]

    class Waiter(dra.Preparer):
        def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
            return dra.Prepared(env={"A": "1"})

    shown, provider = io.StringIO(), Ovens()
    driver = dra.Driver("dra.pizza", provider=provider, preparer=Waiter())
    async with watched(LiveView(shown).read, driver=SandboxDriver((driver,))) as sandbox:
        await sandbox.client.create(PODS, pod("guest", "lunch", "sleep", "300"))
        await until(lambda: phase(sandbox, "guest") == "Running")
        provider.names[:] = ["pizza-1"]
        provider.context.rescan()
        lost = "device pizza-0 of pool node-1 is in use by ResourceClaim lunch and not published now"
        await until(lambda: lost in shown.getvalue())
        rule = {
            "apiVersion": "resource.k8s.io/v1", "kind": "DeviceTaintRule", "metadata": {"name": "lost"},
            "spec": {
                "deviceSelector": {"driver": "dra.pizza", "pool": "node-1", "device": "pizza-0"},
                "taint": {"key": "example.com/lost", "effect": "NoExecute"},
            },
        }  # fmt: skip
        await sandbox.client.create(DEVICE_TAINT_RULES, rule)
        await until(lambda: "Pod guest is gone" in shown.getvalue())
    text = shown.getvalue()
    assert (
        "DeviceTaintRule lost taints 1 device with example.com/lost:NoExecute\n           pizza-0 of pool node-1\n"
        in text
    )
    assert (
        "Pod guest is being deleted\n           evicted by device-taint-eviction-controller: device pizza-0 of pool "
        "node-1 has taint example.com/lost:NoExecute from DeviceTaintRule lost, and request pizza of ResourceClaim "
        "lunch does not tolerate it\n"
    ) in text
