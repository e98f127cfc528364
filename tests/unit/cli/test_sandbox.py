"""``dra-kit sandbox`` on the command line: what it tells, how it ends, and what it leaves behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

DRIVER = """
    from collections.abc import Iterator, Sequence

    import dra_kit as dra


    class Oven(dra.DeviceProvider):
        def discover(self) -> Iterator[Sequence[dra.Device]]:
            {discover}


    class Waiter(dra.Preparer):
        def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
            {prepare}


    driver = dra.Driver("dra.pizza", provider=Oven(), preparer=Waiter())
"""
DISCOVER = 'yield [dra.Device(name=f"pizza-{i}", attributes={"dough": "pan"}) for i in range(2)]'
MOUNT = 'dra.Mount(host_path="/oven", container_path="/srv/oven")'
PREPARE = f'return dra.Prepared(env={{f"{{device.env_name}}_HOT": "yes"}}, mounts=[{MOUNT}])'

CLASS = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "DeviceClass",
    "metadata": {"name": "pizza"},
    "spec": {"selectors": [{"cel": {"expression": 'device.driver == "dra.pizza"'}}]},
}
TEMPLATE = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaimTemplate",
    "metadata": {"name": "one-pizza"},
    "spec": {"spec": {"devices": {"requests": [{"name": "pizza", "exactly": {"deviceClassName": "pizza"}}]}}},
}


def pod(name: str, *command: str, restart: str = "Never") -> dict[str, object]:
    container: dict[str, object] = {"name": "eater", "image": "busybox", "resources": {"claims": [{"name": "pizza"}]}}
    if command:
        container["command"] = list(command)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "restartPolicy": restart,
            "terminationGracePeriodSeconds": 1,
            "containers": [container],
            "resourceClaims": [{"name": "pizza", "resourceClaimTemplateName": "one-pizza"}],
        },
    }


class Kitchen:
    """A folder with a driver and manifests, and the command run in it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.environment = {**os.environ, "XDG_RUNTIME_DIR": str(directory / "run"), "TMPDIR": str(directory / "t")}
        (directory / "run").mkdir()
        (directory / "t").mkdir()
        self.driver()

    def driver(self, *, discover: str = DISCOVER, prepare: str = PREPARE) -> None:
        text = textwrap.dedent(DRIVER).replace("{discover}", discover).replace("{prepare}", prepare)
        (self.directory / "pizzeria.py").write_text(text)

    def order(self, *objects: dict[str, object]) -> None:
        text = yaml.safe_dump_all([CLASS, TEMPLATE, *objects])
        (self.directory / "order.yaml").write_text(text)

    def command(self, *arguments: str) -> list[str]:
        return [str(Path(sys.executable).with_name("dra-kit")), "sandbox", *arguments]

    def run(self, *arguments: str, code: int = 0) -> str:
        result = subprocess.run(
            self.command(*arguments),
            cwd=self.directory,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert result.returncode == code, result.stdout + result.stderr
        return result.stdout + result.stderr

    def left_behind(self) -> list[str]:
        """What a run left among the temporary files."""
        return [path.name for path in (self.directory / "t").iterdir()]


@pytest.fixture
def kitchen() -> Iterator[Kitchen]:
    # a short path: sockets lie below it
    with tempfile.TemporaryDirectory(prefix="k-") as directory:
        yield Kitchen(Path(directory))


def test_pods_get_their_devices_and_the_whole_way_is_told(kitchen: Kitchen) -> None:
    kitchen.order(pod("guest", "sh", "-c", "env; echo enjoying it"), pod("host", restart="Always"))

    text = kitchen.run("./pizzeria.py", "-f", "order.yaml", "--report", "r.json")

    told = [
        "offers 2 devices on node-1",
        "asks for devices",
        "Pod guest goes to node-1",
        "pizza-0 of pool node-1: the first of 2 that fit",
        "kubelet of node-1 calls dra.pizza: NodePrepareResources",
        '"PIZZA_0_HOT=yes"',
        "Pod guest, container eater has started and gets from its claims:",
        "mount /oven on /srv/oven",
        "| enjoying it",
        "Pod guest is Succeeded",
        "every pod did what it was to do",
        "left over: no claim",
    ]
    rest = text
    for line in told:
        assert line in rest, text
        rest = rest.partition(line)[2]
    report = json.loads((kitchen.directory / "r.json").read_text())
    assert report["passed"] is True
    assert report["leftovers"] == []
    assert report["apiWrites"]["perMinute"] > 0
    guest, host = sorted(report["pods"], key=lambda item: item["name"])
    assert (guest["phase"], guest["containers"][0]["exitCode"]) == ("Succeeded", 0)
    assert guest["containers"][0]["environment"]["PIZZA_0_HOT"] == "yes"
    assert guest["containers"][0]["fromClaims"]["mounts"][0]["hostPath"] == "/oven"
    assert (host["phase"], host["containers"][0]["exitCode"]) == ("Running", None)
    assert kitchen.left_behind() == []


def test_pods_that_fail_or_wait_are_told_with_the_reason(kitchen: Kitchen) -> None:
    kitchen.driver(prepare='raise dra.PermanentError("the oven is broken")')
    unschedulable = pod("diner", "true")
    unschedulable["spec"]["nodeSelector"] = {"garden": "yes"}  # type: ignore[index]
    kitchen.order(pod("guest", "true"), unschedulable)

    text = kitchen.run("./pizzeria.py", "-f", "order.yaml", "--timeout", "1.5", code=1)

    reasons = text[text.index("not every pod did what it was to do") :]
    assert "Pod default/guest is Pending: NodePrepareResources failed" in reasons
    assert "the oven is broken" in reasons
    assert "Pod default/diner is Pending: 0/1 nodes are available" in reasons


@pytest.mark.parametrize(
    ("discover", "expected"),
    [
        ('raise ValueError("no gas")\n        yield []', "discover failed: ValueError: no gas at"),
        ("yield []", "offers no device: discover() yielded an empty inventory"),
    ],
    ids=["raises", "empty"],
)
def test_a_driver_that_offers_nothing(kitchen: Kitchen, discover: str, expected: str) -> None:
    kitchen.driver(discover=discover)
    kitchen.order(pod("guest", "true"))

    text = kitchen.run("./pizzeria.py", "-f", "order.yaml", "--no-webhook", code=1)

    *_, last = text.strip().splitlines()
    assert last.startswith("error: driver dra.pizza")
    assert expected in last
    assert last.endswith("[sandbox]")


def test_a_driver_that_does_not_import(kitchen: Kitchen) -> None:
    (kitchen.directory / "pizzeria.py").write_text("import nowhere_to_be_found")

    text = kitchen.run("./pizzeria.py", code=2)

    assert "No module named 'nowhere_to_be_found'" in text
    assert "pizzeria.py:1" in text


def test_a_feature_gate_that_does_not_exist(kitchen: Kitchen) -> None:
    output = kitchen.run("./pizzeria.py", "--feature-gates", "DRAPizza=true", code=2)
    assert "--feature-gates: DRAPizza is no feature gate of resource.k8s.io; there are DRAAdminAccess," in output


def test_a_manifest_of_an_unknown_kind(kitchen: Kitchen) -> None:
    (kitchen.directory / "order.yaml").write_text("{apiVersion: v1, kind: Pizza, metadata: {name: a}}")

    text = kitchen.run("./pizzeria.py", "-f", "order.yaml", code=2)

    assert "order.yaml, document 1: the API server has no kind Pizza of v1" in text
    assert kitchen.left_behind() == []


def test_a_story_of_a_project_with_its_device_classes(kitchen: Kitchen) -> None:
    project = Path(__file__).parents[3] / "examples" / "pizza-driver"
    story = project / "stories" / "order-by-claim"

    text = kitchen.run(str(project), "--story", str(story), "--report", "r.json")

    assert "Pod guest goes to node-1" in text
    assert "story order-by-claim passed" in text
    (pod_report,) = json.loads((kitchen.directory / "r.json").read_text())["pods"]
    assert pod_report["phase"] == "Running"
    assert "enjoying a margherita" in pod_report["containers"][0]["output"]


def test_an_interruption_takes_everything_down(kitchen: Kitchen) -> None:
    kitchen.order(pod("guest", "sleep", "4321"))
    with subprocess.Popen(
        kitchen.command("./pizzeria.py", "-f", "order.yaml"),
        cwd=kitchen.directory,
        env=kitchen.environment,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "Pod guest is Running" in line:
                process.send_signal(signal.SIGINT)
                break
        process.stdout.read()
        assert process.wait(60) == 130

    assert kitchen.left_behind() == []
    assert not sleeping("4321")


def test_a_sandbox_in_the_background(kitchen: Kitchen) -> None:
    kitchen.order(pod("guest", "sleep", "4322"))
    kubeconfig = kitchen.directory / "kubeconfig"

    text = kitchen.run("./pizzeria.py", "-f", "order.yaml", "--detach", "--kubeconfig", "kubeconfig")

    assert "dra.pizza runs in a cluster in the background" in text
    assert json.loads(kubeconfig.read_text())["kind"] == "Config"
    assert "the sandbox of dra.pizza has ended" in kitchen.run("down")
    assert not kubeconfig.exists()
    assert kitchen.left_behind() == []
    assert not sleeping("4322")
    assert "no sandbox runs in the background" in kitchen.run("down", code=1)


def test_a_detached_sandbox_that_does_not_come_up(kitchen: Kitchen) -> None:
    kitchen.driver(discover='raise ValueError("no gas")\n        yield []')

    assert "ValueError: no gas" in kitchen.run("./pizzeria.py", "--detach", code=1)


def sleeping(seconds: str) -> bool:
    """Whether a process ``sleep <seconds>`` exists; one that was killed may take a moment to go."""
    end = time.monotonic() + 10
    while time.monotonic() < end:
        found = False
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                found |= path.read_bytes().split(b"\0")[:2] == [b"sleep", seconds.encode()]
            except OSError:
                continue
        if not found:
            return False
        time.sleep(0.05)
    return True
