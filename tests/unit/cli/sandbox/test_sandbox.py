"""``dra-kit sandbox`` on the command line: its output about pods, drivers and manifests."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest
from click.testing import CliRunner

from dra_kit.cli.app import cli
from dra_kit.sandbox.timeline.recording import Recording
from dra_kit.sandbox.timeline.report import RunReport
from tests.unit.cli.kitchen import TEMPLATE, Kitchen, pod

pytestmark = pytest.mark.processes


def test_output_shows_all_steps_until_pods_get_devices(kitchen: Kitchen) -> None:
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
        "all pods succeeded",
        "left over: no claim",
    ]
    rest = text
    for line in told:
        assert line in rest, text
        rest = rest.partition(line)[2]
    assert 'DeviceClass pizza selects\n           device.driver == "dra.pizza"' in text
    assert (kitchen.directory / "r.json").stat().st_mode & 0o777 == 0o600
    report = kitchen.report()
    assert report["passed"] is True
    assert report["leftovers"] == []
    assert report["apiWrites"]["perMinute"] > 0
    guest, host = sorted(report["pods"], key=lambda item: item["name"])
    assert (guest["phase"], guest["containers"][0]["exitCode"]) == ("Succeeded", 0)
    assert guest["containers"][0]["environment"]["PIZZA_0_HOT"] == "yes"
    assert guest["containers"][0]["fromClaims"]["mounts"][0]["hostPath"] == "/oven"
    assert (host["phase"], host["containers"][0]["exitCode"]) == ("Running", None)
    assert kitchen.left_behind() == []


def test_failed_and_waiting_pods_are_reported_with_reasons(kitchen: Kitchen) -> None:
    kitchen.driver(prepare='raise dra.PermanentError("the oven is broken")')
    unschedulable = pod("diner", "true")
    unschedulable["spec"]["nodeSelector"] = {"garden": "yes"}
    kitchen.order(pod("guest", "true"), unschedulable)

    told = [
        "Pod default/guest is Pending: NodePrepareResources failed",
        "the oven is broken",
        "Pod default/diner is Pending: 0/1 nodes are available",
    ]
    text = kitchen.run_in_vain("./pizzeria.py", "-f", "order.yaml", seconds=1.5, tells=told)

    reasons = text[text.index("not all pods succeeded") :]
    assert [line for line in told if line not in reasons] == []


def test_a_pod_whose_claim_the_driver_refuses_for_good_ends_the_wait(kitchen: Kitchen) -> None:
    kitchen.driver(prepare='raise dra.PermanentError("the oven is broken")')
    kitchen.order(pod("guest", "true"))

    text = kitchen.run("./pizzeria.py", "-f", "order.yaml", "--timeout", "600", code=1)

    assert "not all pods succeeded\n" in text  # and not "within 600 s"
    assert "Pod default/guest is Pending: NodePrepareResources failed" in text


def test_what_stands_behind_a_pod_that_waits(kitchen: Kitchen) -> None:
    exactly = {
        "deviceClassName": "pizza",
        "selectors": [{"cel": {"expression": 'device.attributes["dra.pizza"].dough == "thin"'}}],
    }
    thin: dict[str, object] = {
        **TEMPLATE,
        "metadata": {"name": "thin"},
        "spec": {"spec": {"devices": {"requests": [{"name": "pizza", "exactly": exactly}]}}},
    }
    kitchen.order(
        thin,
        pod("picky", "true", resourceClaimTemplateName="thin"),
        pod("lost", "true", resourceClaimName="nothere"),
        pod("untold", "true", resourceClaimTemplateName="nowhere"),
    )

    told = [
        'claim pizza: request pizza: 2 devices on 1 node: 2 wrong dough ("pan" ≠ "thin")',
        "Pod default/lost is Pending: claim pizza: ResourceClaim nothere does not exist",
        "Pod default/untold is Pending: claim pizza: ResourceClaimTemplate nowhere does not exist",
        "FailedResourceClaimCreation: PodResourceClaim pizza: resource claim template",
    ]
    options = ["-f", "order.yaml", "--report", "r.json"]
    text = kitchen.run_in_vain("./pizzeria.py", *options, seconds=1.5, tells=told)

    reasons = text[text.index("not all pods succeeded") :]
    assert [line for line in told if line not in reasons] == []
    report = kitchen.report()
    assert report["pods"][1]["message"] == "claim pizza: ResourceClaim nothere does not exist"


def test_devices_in_use_are_reported_once(kitchen: Kitchen) -> None:
    kitchen.order(*(pod(name, "sleep", kitchen.nap) for name in ("first", "second", "third")))

    told = "claim pizza: request pizza: 2 devices match, but none is available: 2 allocated to "
    text = kitchen.run_in_vain("./pizzeria.py", "-f", "order.yaml", seconds=1.5, tells=[told])

    reasons = text[text.index("not all pods succeeded") :]
    assert reasons.count(told) == reasons.count("2 allocated to ") == 1


def test_pod_of_unknown_scheduler_is_reported_while_it_waits(kitchen: Kitchen) -> None:
    kitchen.order(pod("lost", "true", resourceClaimName="nothere"))

    told = "Pod lost has to wait\n           claim pizza: ResourceClaim nothere does not exist"
    text = kitchen.run_in_vain("./pizzeria.py", "-f", "order.yaml", seconds=4, tells=[told])

    waits, _, reasons = text.partition("not all pods succeeded")
    assert told in waits
    assert "ResourceClaim nothere does not exist" in reasons


def test_repeatedly_failing_prepare_is_reported_while_pod_waits(kitchen: Kitchen) -> None:
    kitchen.driver(prepare='raise OSError("the oven is cold")')
    kitchen.order(pod("guest", "true"))

    told = "Pod guest still waits: the kubelet tries again, up to 4 s in all (--timeout)\n"
    text = kitchen.run_in_vain("./pizzeria.py", "-f", "order.yaml", seconds=4, tells=[told])

    assert text.index("OSError: the oven is cold") < text.index(told) < text.index("not all pods succeeded")


def test_the_timeline_is_kept_in_order_and_gives_the_same_report(kitchen: Kitchen) -> None:
    kitchen.order(pod("guest", "sh", "-c", "echo enjoying it"))

    text = kitchen.call("./pizzeria.py", "-f", "order.yaml", "--record", "t.jsonl", "--report", "r.json")

    file = kitchen.directory / "t.jsonl"
    assert file.stat().st_mode & 0o777 == 0o600
    records = list(Recording(file).records())
    assert [record.number for record in records] == list(range(1, len(records) + 1))
    assert sorted(record.seconds for record in records) == [record.seconds for record in records]
    way = iter(type(record).__name__ for record in records)
    for kind in (
        "ClusterStarted", "PluginConnected", "ObjectChanged", "PodScheduled", "CallStarted", "CallEnded",
        "CdiSpecWritten", "ContainerStarted", "ContainerOutput", "ContainerEnded", "PodTerminating", "ClusterEnding",
    ):  # fmt: skip
        assert kind in way
    assert type(records[-1]).__name__ == "RunEnded"
    report = RunReport()
    for record in records:
        report.read(record)
    assert report.report() == kitchen.report()
    assert CliRunner().invoke(cli, ["replay", str(file)]).output == text


def test_a_driver_that_offers_nothing_because_discover_fails(kitchen: Kitchen) -> None:
    kitchen.driver(discover='raise ValueError("no gas")\n        yield []')
    kitchen.order(pod("guest", "true"))

    text = kitchen.call("./pizzeria.py", "-f", "order.yaml", "--no-webhook", code=2)

    *_, last = text.strip().splitlines()
    assert last.startswith("error: driver dra.pizza")
    assert "discover failed: ValueError: no gas at" in last
    assert last.endswith("[sandbox]")


def test_blocking_code_is_reported_with_its_line(kitchen: Kitchen) -> None:
    kitchen.driver(discover="__import__('threading').Event().wait(); yield []")

    with kitchen.start("./pizzeria.py") as process:
        assert process.stdout is not None
        told = next(line for line in process.stdout if "has not yielded an inventory" in line)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)

    place = re.escape(f"{kitchen.directory}/pizzeria.py:9")
    assert re.search(rf"on node-1: Oven.discover has not yielded an inventory for \d+ s at {place}\n", told)


def test_settings_are_looked_at_before_the_cluster_starts(kitchen: Kitchen) -> None:
    kitchen.settings("heat: int = 200")

    text = kitchen.call("./pizzeria.py", "--heat", "high", code=2)

    assert "--heat (DRIVER_HEAT): must be " in text
    assert "Kubernetes" not in text
    assert kitchen.left_behind() == []


def test_a_driver_that_does_not_import(kitchen: Kitchen) -> None:
    (kitchen.directory / "pizzeria.py").write_text("import nowhere_to_be_found")

    text = kitchen.run("./pizzeria.py", code=2)

    assert "No module named 'nowhere_to_be_found'" in text
    assert "pizzeria.py:1" in text


def test_a_feature_gate_that_does_not_exist(kitchen: Kitchen) -> None:
    output = kitchen.call("./pizzeria.py", "--feature-gates", "DRAPizza=true", code=2)
    assert (
        "--feature-gates: DRAPizza is not a feature gate of resource.k8s.io; known gates are DRAAdminAccess," in output
    )


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (
            "resource.k8s.io/v1beta7=true",
            "--runtime-config: group version resource.k8s.io/v1beta7 that has not been registered",
        ),
        (
            "resource.k8s.io/v1=false",
            "--runtime-config switches off resource.k8s.io/v1: the sandbox uses all versions that are on by default;",
        ),
    ],
)  # fmt: skip
def test_runtime_config_that_the_sandbox_cannot_serve(kitchen: Kitchen, value: str, problem: str) -> None:
    assert problem in kitchen.call("./pizzeria.py", "--runtime-config", value, code=2)


def test_a_feature_gate_that_nothing_implements(kitchen: Kitchen) -> None:
    output = kitchen.call("./pizzeria.py", "--alpha", "--feature-gates", "PodsAPI=true", code=2)
    assert "--feature-gates: PodsAPI is a feature gate of Kubernetes without effect here" in output
    assert "; known gates are DRAAdminAccess," in output


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("kind: [", "error: order.yaml cannot be read: line 1, column 8: "),
        ("# nothing", "error: -f order.yaml: no Kubernetes object found; add one, or leave out -f"),
        ('{"kind":"RecordingStarted","number":1}\n{}', "this is a recording, not YAML or JSON; show it with"),
    ],
    ids=["broken", "empty", "recording"],
)
def test_a_file_without_objects_is_refused_before_anything_starts(kitchen: Kitchen, text: str, expected: str) -> None:
    (kitchen.directory / "order.yaml").write_text(text)

    found = kitchen.call("./pizzeria.py", "-f", "order.yaml", "--record", "run.jsonl", code=2)

    assert expected in found
    assert "in one process" not in found
    assert not (kitchen.directory / "run.jsonl").exists()
    assert kitchen.left_behind() == []


def test_a_manifest_of_an_unknown_kind(kitchen: Kitchen) -> None:
    (kitchen.directory / "order.yaml").write_text("{apiVersion: v1, kind: Pizza, metadata: {name: a}}")

    text = kitchen.call("./pizzeria.py", "-f", "order.yaml", code=2)

    assert "order.yaml, document 1: the API server has no kind Pizza of v1" in text
    assert kitchen.left_behind() == []


def test_file_without_pods_is_not_reported_as_success(kitchen: Kitchen) -> None:
    (kitchen.directory / "order.yaml").write_text("{apiVersion: v1, kind: ConfigMap, metadata: {name: menu}}")

    told = kitchen.call("./pizzeria.py", "-f", "order.yaml")

    assert "no pod to wait for; created ConfigMap menu" in told
    assert "all pods succeeded" not in told


DEPLOYMENT = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: kitchen}
spec:
  replicas: 2
  selector: {matchLabels: {app: a}}
  template: {metadata: {labels: {app: a}}, spec: {CONTAINERS: [{name: main, image: x}]}}
"""


def test_the_pods_of_a_workload_are_followed_and_go_with_it(kitchen: Kitchen) -> None:
    (kitchen.directory / "order.yaml").write_text(DEPLOYMENT.replace("CONTAINERS", "containers"))

    text = kitchen.call("./pizzeria.py", "-f", "order.yaml")

    assert "all pods succeeded" in text
    assert len(set(re.findall(r"Pod (kitchen-\S+) is Running", text))) == 2
    assert "left over: no claim" in text


def test_workload_with_rejected_pods_fails(kitchen: Kitchen) -> None:
    text = DEPLOYMENT.replace("CONTAINERS", "serviceAccountName: missing, containers")
    (kitchen.directory / "order.yaml").write_text(text)

    told = kitchen.call("./pizzeria.py", "-f", "order.yaml", "--timeout", "2", code=1)

    assert "Deployment default/kitchen has 0 of 2 pods that are ready" in told


def test_container_results_are_printed_and_in_the_report(kitchen: Kitchen) -> None:
    guest = pod("guest", "true")
    guest["spec"]["initContainers"] = [{"name": "oven", "image": "x", "command": ["sh", "-c", "exit 3"]}]
    kitchen.order(guest)

    text = kitchen.call("./pizzeria.py", "-f", "order.yaml", "--report", "r.json", code=1)

    reason = "init container oven ended with exit code 3"
    assert f"Pod default/guest is Failed: {reason}" in text
    assert kitchen.report()["pods"][0]["message"] == reason


def test_a_manifest_that_is_refused_is_named(kitchen: Kitchen) -> None:
    kitchen.order(pod("no_name", "true"))

    text = kitchen.call("./pizzeria.py", "-f", "order.yaml", code=2)

    *_, last = text.strip().splitlines()
    assert last.startswith("error: manifest order.yaml, document 3: ")
    assert last.endswith("[kube-invalid]")


def test_folder_of_manifests_may_contain_other_files(kitchen: Kitchen) -> None:
    folder = kitchen.directory / "manifests"
    folder.mkdir()
    kitchen.order(pod("guest", "true"))
    (kitchen.directory / "order.yaml").rename(folder / "order.yaml")

    for _ in range(2):  # the second time with the report of the first
        kitchen.call("./pizzeria.py", "-f", "manifests", "--report", "manifests/report.json")

    output = kitchen.call("./pizzeria.py", "-f", "t", code=2)
    assert "t: no YAML or JSON file in this folder contains a Kubernetes object" in output
    assert "manifests/report.json, document 1" in kitchen.call("./pizzeria.py", "-f", "manifests/report.json", code=2)


@pytest.mark.parametrize("option", ["--report", "--record", "--kubeconfig"])
def test_unwritable_output_file_is_reported_at_start(kitchen: Kitchen, option: str) -> None:
    text = kitchen.call("./pizzeria.py", option, "nowhere/file", code=2)

    assert f"Invalid value for '{option}': directory nowhere does not exist" in text
    assert not (kitchen.directory / "nowhere").exists()


@pytest.mark.parametrize("target", ["./pizzeria.py", "pizzeria:driver", "pizzeria"])
def test_the_driver_of_a_project_has_its_settings_and_classes(kitchen: Kitchen, target: str) -> None:
    kitchen.settings("heat: int = 200")
    kitchen.project("pizzeria:driver", heat="hot")

    assert "--heat (DRIVER_HEAT): must be " in kitchen.call(target, code=2)


def test_hint_for_driver_that_does_not_use_its_project(kitchen: Kitchen) -> None:
    kitchen.project("bakery", heat="hot")
    kitchen.order(pod("guest", "true"))

    text = kitchen.call("./pizzeria.py", "-f", "order.yaml", "--no-webhook")

    assert text.count("hint: ./pizzeria.py is not bakery:driver, the driver of ") == 1


def test_a_story_of_a_project_with_its_device_classes(kitchen: Kitchen) -> None:
    project = Path(__file__).parents[4] / "examples" / "pizza-driver"
    story = project / "stories" / "order-by-claim"

    text = kitchen.call(str(project), "--story", str(story), "--report", "r.json")

    assert "Pod guest goes to node-1" in text
    assert "story order-by-claim passed" in text
    (pod_report,) = kitchen.report()["pods"]
    assert pod_report["phase"] == "Running"
    assert "enjoying a margherita" in pod_report["containers"][0]["output"]
