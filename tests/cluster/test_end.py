"""The end of a driver on a real node: asked before, and pods that end although the driver is gone."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import manifests
from tests.cluster.deployed import KUBELET_DIR, Deployed, deployed, wait_until
from tests.cluster.documented import removal_commands, run_command
from tests.cluster.node_driver import CDI_DIR
from tests.cluster.pizza import PROJECT
from tests.cluster.plane import Plane, PlaneError
from tests.cluster.processes import running
from tests.cluster.renamed import renamed_class


@contextmanager
def guest(driver: Deployed) -> Iterator[str]:
    """A pod whose pizza needs a hot oven, by name; it goes on until it is deleted."""
    plane, name = driver.release.plane, f"{driver.release.name}-guest"
    parameters = {"apiVersion": "kitchen.pizza.example/v1", "kind": "PizzaConfig", "oven_temperature": 300}
    config = [{"opaque": {"driver": driver.name, "parameters": parameters}}]
    device_class = renamed_class("pizza", driver.name)
    plane.create(*manifests.guest(name, device_class, "sleep", "100000", request="pizza", config=config))
    try:
        wait_until("the guest eats", lambda: plane.get("pod", name)["status"].get("phase") == "Running")
        yield name
    finally:
        plane.kubectl("delete", "pod", name, "--ignore-not-found", "--force", "--grace-period=0", "--wait=false")
        plane.kubectl("delete", "resourceclaim", name, "--ignore-not-found", "--wait=false")


def heat(driver: Deployed) -> list[str]:
    """The contents of the oven's files."""
    return sorted(path.read_text() for path in (driver.directory / "oven").rglob("*") if path.is_file())


def pods(plane: Plane, name: str) -> list[Any]:
    items: list[Any] = plane.get("pods", "--field-selector", f"metadata.name={name}")["items"]
    return items


@pytest.mark.long
def test_uninstalling_is_refused_while_pods_use_devices(node_plane: Plane, pizza_image: str) -> None:
    with deployed(node_plane, pizza_image, "guarded.pizza.example") as driver, guest(driver) as name:
        with pytest.raises(PlaneError):
            driver.release.helm("uninstall", driver.release.name, "--timeout", "120s")
        assert driver.slices()
        assert pods(node_plane, name)[0]["status"]["phase"] == "Running"
        driver.release.take_back()
        driver.release.apply()  # an upgrade is never asked
        node_plane.kubectl("delete", "pod", name)
        wait_until("the pod has gone", lambda: not pods(node_plane, name))
        driver.release.helm("uninstall", driver.release.name, "--timeout", "120s")


@pytest.mark.long
def test_a_driver_is_removed_for_good_while_its_pods_end(node_plane: Plane, pizza_image: str) -> None:
    with deployed(node_plane, pizza_image, "retired.pizza.example") as driver:
        cold = heat(driver)
        with guest(driver) as name:
            assert heat(driver) != cold
            node = driver.release.values["node"]
            driver.release.apply({"node": {**node, "decommission": True}})
            driver.release.rolled_out("daemonset", "node")
            wait_until("its devices are withdrawn", lambda: not driver.slices())
            assert pods(node_plane, name)[0]["status"]["phase"] == "Running"
            node_plane.kubectl("delete", "pod", name)
            wait_until("the pod has gone", lambda: not pods(node_plane, name))
        assert heat(driver) == cold
        driver.release.uninstall()
        wait_until("its sockets have gone", lambda: not driver.sockets())
        wait_until("nothing is left", lambda: is_gone(driver))


def test_pods_end_after_the_driver_has_gone(node_plane: Plane, pizza_image: str, tmp_path: Path) -> None:
    """Uninstalled under a running pod, which then cannot end: the decommission, as a process on the node, helps."""
    with deployed(node_plane, pizza_image, "gone.pizza.example") as driver:
        cold = heat(driver)
        with guest(driver) as name:
            driver.release.uninstall(hooks=False)
            wait_until("its sockets have gone", lambda: not driver.sockets())
            node_plane.kubectl("delete", "pod", name, "--wait=false")
            wait_until(
                "the kubelet reports that the pod cannot terminate",
                lambda: "gone.pizza.example" in node_plane.kubectl("describe", "pod", name).stdout.split("Events:")[1],
            )
            assert heat(driver) != cold
            code = tmp_path / "kitchen.py"
            code.write_text(
                "import dra_kit as dra\n"
                "from pizza_driver.driver import HeatOven, Kitchen, KitchenSettings, Waiter\n"
                f"driver = dra.Driver({driver.name!r}, provider=Kitchen(), preparer=Waiter(), effects=[HeatOven], "
                "settings=KitchenSettings)\n"
            )
            settings = driver.release.values["node"]["settings"]
            command = [
                Path(sys.executable).with_name("dra-kit"), "decommission", driver.plugin_dir, code,
                "--driver", driver.name, "--node-name", str(node_plane.node), "--kubeconfig", node_plane.kubeconfig,
                "--kubelet-dir", KUBELET_DIR, "--cdi-dir", CDI_DIR, "--menu", settings["menu"],
                "--hardware-dir", settings["hardware_dir"],
            ]  # fmt: skip
            environment = {"PYTHONPATH": str(PROJECT / "src")}
            with running(command, log=tmp_path / "decommission.log", environment=environment) as decommission:
                wait_until("the pod has gone", lambda: not pods(node_plane, name) or decommission.process.poll())
                wait_until("the decommission has ended", lambda: decommission.process.poll() is not None)
                assert decommission.process.returncode == 0, (tmp_path / "decommission.log").read_text()
        assert heat(driver) == cold
        assert not driver.plugin_dir.exists()
        assert driver.cdi_files() == []


def explained(plane: Plane, pod: str, folder: Path) -> tuple[int, str]:
    """The exit code of ``dra-kit explain pod``, and its text as one line."""
    result = run_command(plane, f"dra-kit explain pod {pod}", folder)
    assert not result.stderr
    return result.returncode, " ".join(result.stdout.split())


@pytest.mark.long
def test_explain_names_the_driver_that_a_terminating_pod_waits_for(
    node_plane: Plane, pizza_image: str, tmp_path: Path
) -> None:
    """It says so until its remedy is followed: installed with node.decommission, the driver lets the pod terminate."""
    with deployed(node_plane, pizza_image, "vanished.pizza.example") as driver, guest(driver) as name:
        driver.release.uninstall(hooks=False)
        wait_until("its sockets have gone", lambda: not driver.sockets())
        # the kubelet withdraws them, 30 s after it has lost the driver
        wait_until("its devices are withdrawn", lambda: not driver.slices())
        missing = f"the driver has no slice of {node_plane.node}"
        assert f"{driver.name}: {missing}" in explained(node_plane, name, tmp_path)[1]
        node_plane.kubectl("delete", "pod", name, "--wait=false")
        waits = f"waits for {driver.name} to release its devices: {missing}, so it is not registered there"
        wait_until("explain says what the pod waits for", lambda: waits in explained(node_plane, name, tmp_path)[1])
        code, text = explained(node_plane, name, tmp_path)
        assert code == 3
        assert f"pod default/{name} is being deleted since " in text
        assert f"→ install {driver.name} again, or with node.decommission=true if it is to be removed" in text
        assert "docs/how-to/remove-a-driver.md" in text
        assert "not why its containers do not run" not in text

        node = driver.release.values["node"]
        driver.release.apply({"node": {**node, "decommission": True}})
        wait_until("the pod has gone", lambda: not pods(node_plane, name))


GHOST = "ghost"


def documented(driver: Deployed) -> tuple[str, str, str]:
    """The commands of the page that remove this driver for good."""
    return removal_commands(driver.name, driver.release.namespace, driver.release.name)


def is_gone(driver: Deployed) -> bool:
    """Whether nothing of a driver is left on the node."""
    return not (driver.plugin_dir.exists() or driver.sockets() or driver.cdi_files() or driver.slices())


def test_the_documented_commands_leave_nothing_on_the_node(node_plane: Plane, pizza_image: str, tmp_path: Path) -> None:
    """One after the other, without waiting for anything between them; the second one begins while a pod runs."""
    with deployed(node_plane, pizza_image, "leaving.pizza.example") as driver:
        upgrade, drain, uninstall = documented(driver)
        cold = heat(driver)
        with guest(driver) as name, ThreadPoolExecutor() as pool:
            assert heat(driver) != cold
            assert run_command(node_plane, upgrade, tmp_path).returncode == 0
            drained = pool.submit(run_command, node_plane, f"{drain} 2>waiting", tmp_path)
            waiting = tmp_path / "waiting"
            wait_until("it waits", lambda: waiting.exists() and "waiting for 1 claim" in waiting.read_text())
            node_plane.kubectl("delete", "pod", name)
            result = drained.result()
        assert result.returncode == 0, result.stdout
        assert f"nothing is left on 1 node: {node_plane.node}\n" in result.stdout
        removed = run_command(node_plane, uninstall, tmp_path)
        assert removed.returncode == 0, removed.stdout + removed.stderr
        wait_until("nothing is left", lambda: is_gone(driver))
        assert heat(driver) == cold


@pytest.mark.long
def test_the_uninstall_waits_for_the_nodes_where_nothing_else_does(
    node_plane: Plane, pizza_image: str, tmp_path: Path
) -> None:
    """All at once: the pods of the removal are not even started when the uninstall begins."""
    with deployed(node_plane, pizza_image, "hasty.pizza.example") as driver:
        with guest(driver) as name:
            node_plane.kubectl("delete", "pod", name)
            wait_until("the pod has gone", lambda: not pods(node_plane, name))
        assert (driver.plugin_dir / "state.sqlite").exists()
        upgrade, drain, uninstall = documented(driver)
        drain = drain.replace("--until-removed", "--no-until-removed")
        result = run_command(node_plane, f"{upgrade} && {drain} && {uninstall}", tmp_path)
        assert result.returncode == 0, result.stdout + result.stderr
        wait_until("nothing is left", lambda: is_gone(driver))


@contextmanager
def ghost(plane: Plane) -> Iterator[None]:
    """A Node that the DaemonSet selects, and that no kubelet serves."""
    labels = {"kubernetes.io/hostname": plane.node}
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": GHOST, "labels": labels}}
    plane.create(node)
    try:
        yield
    finally:
        plane.kubectl("delete", "node", GHOST)


@pytest.mark.long
@pytest.mark.alone
def test_a_node_that_does_not_confirm_is_named_and_may_be_skipped(
    node_plane: Plane, pizza_image: str, tmp_path: Path
) -> None:
    with deployed(node_plane, pizza_image, "haunted.pizza.example") as driver, ghost(node_plane):
        upgrade, drain, uninstall = documented(driver)
        assert run_command(node_plane, f"{upgrade} --set drainGuard.decommissionWait=5", tmp_path).returncode == 0
        here = run_command(node_plane, f"{drain} --node {node_plane.node}", tmp_path)
        assert here.returncode == 0, here.stdout
        drain = drain.replace("--wait 3600", "--wait 0")
        refused = run_command(node_plane, drain, tmp_path)
        assert refused.returncode == 4
        assert f"--skip-node {GHOST}" in refused.stdout
        guarded = run_command(node_plane, uninstall, tmp_path)
        assert guarded.returncode != 0
        assert f"--skip-node {GHOST}" in guarded.stdout + guarded.stderr, "helm prints what the guard found"
        skipped = run_command(node_plane, f"{drain} --skip-node {GHOST}", tmp_path)
        assert skipped.returncode == 0, skipped.stdout
        driver.release.take_back()
        run_command(node_plane, f"{upgrade} --set 'drainGuard.skipNodes={{{GHOST}}}'", tmp_path)
        removed = run_command(node_plane, uninstall, tmp_path)
        assert removed.returncode == 0, removed.stdout + removed.stderr
        wait_until("nothing is left", lambda: not (driver.plugin_dir.exists() or driver.cdi_files() or driver.slices()))
