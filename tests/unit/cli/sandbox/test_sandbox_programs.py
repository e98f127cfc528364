"""``dra-kit sandbox`` with drivers that are programs or charts, on the command line; and ``dra-kit sandbox logs``."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest
import yaml

from dra_kit.cli.sandbox_drivers import chart_folders
from dra_kit.errors import ConfigurationError
from dra_kit.sandbox import charts
from dra_kit.sandbox.drivers import command_processes
from tests.support import foreign_driver
from tests.unit.cli.kitchen import Kitchen, pod, sleeping

ROOT = Path(__file__).resolve().parents[4]
DRIVER = f"{sys.executable} {foreign_driver.__file__}"
processes = pytest.mark.processes


def test_values_belong_to_the_chart_before_them() -> None:
    found = chart_folders(["--chart", "a", "--values=1", "--values", "2", "-f", "x", "--chart=b", "--chart", "c"])

    assert found == ((Path("a"), (Path("1"), Path("2"))), (Path("b"), ()), (Path("c"), ()))


def test_values_before_a_chart_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="--values 1 comes before the first --chart"):
        chart_folders(["--values", "1", "--chart", "a"])


def write_chart(kitchen: Kitchen, *objects: object) -> None:
    """Write the chart ``chart``, which a helm of ours renders."""
    chart = kitchen.directory / "chart"
    chart.mkdir()
    (chart / "Chart.yaml").write_text("apiVersion: v2\nname: oven-driver\nversion: 1.0.0\n")
    (chart / "rendered.yaml").write_text(yaml.safe_dump_all(objects))
    helm = kitchen.directory / "helm"
    helm.write_text('#!/bin/sh\ncat "$3/rendered.yaml"\n')
    helm.chmod(0o755)
    kitchen.environment |= {"HELM": str(helm), "PYTHONPATH": str(ROOT)}


def write_free_pod(kitchen: Kitchen) -> None:
    """Write ``guest.yaml``, a pod that needs no device."""
    guest = pod("guest", "echo", "eats")
    del guest["spec"]["resourceClaims"], guest["spec"]["containers"][0]["resources"]
    (kitchen.directory / "guest.yaml").write_text(yaml.safe_dump(guest))


@processes
@pytest.mark.parametrize("by_chart", [False, True], ids=["--plugin", "--chart"])
def test_a_driver_that_never_registers_fails_the_run_of_pods_that_do_not_need_it(
    kitchen: Kitchen, monkeypatch: pytest.MonkeyPatch, by_chart: bool
) -> None:
    monkeypatch.setattr(charts if by_chart else command_processes, "READY_SECONDS", 0.0)
    write_free_pod(kitchen)
    container = {"name": "driver", "image": "x", "command": ["sleep", kitchen.nap]}
    volume = {"name": "registry", "hostPath": {"path": "/var/lib/kubelet/plugins_registry"}}
    template = {"metadata": {"labels": {"app": "x"}}, "spec": {"containers": [container], "volumes": [volume]}}
    spec = {"selector": {"matchLabels": {"app": "x"}}, "template": template}
    write_chart(kitchen, {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "driver"}, "spec": spec})

    given = ("--chart", "chart") if by_chart else ("--plugin", f"sleep {kitchen.nap}")
    text = kitchen.call(*given, "-f", "guest.yaml", code=1)

    _, _, end = text.partition("all pods succeeded")
    assert ("its driver is not registered" if by_chart else "sleep@node-1 is not registered") in end
    assert kitchen.left_behind() == []


@processes
def test_a_program_is_a_driver_for_the_pods_of_files(kitchen: Kitchen) -> None:
    kitchen.environment["PYTHONPATH"] = str(ROOT)
    page = (ROOT / "docs" / "how-to" / "any-driver.md").read_text(encoding="utf-8")
    (kitchen.directory / "gpu.yaml").write_text(page.partition("```yaml\n")[2].partition("```")[0])

    text = kitchen.call("--plugin", DRIVER, "-f", "gpu.yaml")

    name = Path(sys.executable).name
    assert f"starting a cluster in this process, with driver {name}" in text
    assert f"{name}@node-1 starts" in text
    assert "driver gpu.example.com is registered" in text
    assert "GPU_DEVICE=gpu-0" in text
    assert "all pods succeeded" in text
    assert kitchen.left_behind() == []


@processes
def test_logs_of_a_sandbox_in_the_background(kitchen: Kitchen) -> None:
    for name in ("oven", "grill"):
        (kitchen.directory / f"{name}.py").write_text(f"import time\nprint('{name}')\ntime.sleep(1000)")
    name = Path(sys.executable).name

    kitchen.run(
        "--detach",
        *("--controller", f"{sys.executable} -u oven.py"),
        *("--controller", f"{sys.executable} -u grill.py"),
    )
    while len(lines := kitchen.call("logs").splitlines()) < 2:  # one may not have started yet
        time.sleep(0.1)
    assert sorted(lines) == [f"{name} | oven", f"{name}-2 | grill"]
    assert kitchen.run("logs", f"{name}-2") == "grill\n"
    assert f"processes: {name}-2, {name}; kubectl" in kitchen.call("logs", "x", code=2)
    kitchen.call("down")
    assert kitchen.left_behind() == []


@processes
@pytest.mark.parametrize("code", [0, 1])
def test_hooks_of_a_chart_run_at_the_end(kitchen: Kitchen, code: int) -> None:
    words = [sys.executable, "-c", f"print('the last pizza'); raise SystemExit({code})"]
    spec = {"restartPolicy": "Never", "containers": [{"name": "c", "image": "x", "command": words}]}
    annotations = {"helm.sh/hook": "pre-delete", "helm.sh/hook-delete-policy": "hook-succeeded"}
    job = {
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "farewell", "annotations": annotations},
        "spec": {"backoffLimit": 0, "template": {"spec": spec}},
    }  # fmt: skip
    write_chart(kitchen, job)
    write_free_pod(kitchen)

    text = kitchen.run("--no-node-namespaces", "--chart", "chart", "-f", "guest.yaml", code=code)

    assert text.index("eats") < text.index("chart oven-driver is deleted: its hooks run") < text.index("the last pizza")
    assert ("chart oven-driver: hook Job farewell has failed" in text) is bool(code)
    assert kitchen.left_behind() == []


@processes
def test_programs_do_not_outlive_a_killed_sandbox(kitchen: Kitchen) -> None:
    plugin = f"sh -c 'echo begins; sleep {kitchen.nap}'"
    with kitchen.start("--plugin", plugin) as process:
        assert process.stdout is not None
        assert any("begins" in line for line in process.stdout)
        os.kill(process.pid, signal.SIGKILL)
        process.stdout.read()

    assert not sleeping(kitchen.nap)


@processes
def test_an_unusable_program_is_an_error_without_a_traceback(kitchen: Kitchen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_processes, "_AT_ONCE_SECONDS", 1000.0)
    text = kitchen.call("--plugin", "./no-such-driver {node}", code=2)
    assert "--plugin './no-such-driver {node}': program" in text
    assert "does not exist; build it, or correct the path" in text
    assert "Traceback" not in text
    text = kitchen.call("--time-scale", "100", "--plugin", "sh -c 'exit 4'", code=2)
    assert "exited at once 5 times on node-1, the last time with exit code 4" in text
    assert "--values requires --chart" in kitchen.call("--values", "pizzeria.py", code=2)
