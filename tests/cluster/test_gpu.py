"""The GPU driver in a cluster, with fake GPUs: its image, its values, its stories, MPS daemons as pods."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from dra_kit.client.resources import DECOMMISSIONED
from tests.cluster.deployed import KUBELET_DIR, wait_until
from tests.cluster.documented import removal_commands, run_command
from tests.cluster.find import find
from tests.cluster.gpu import (
    DRIVER,
    MPS_ROOT,
    PACKAGES,
    PROJECT,
    FakeGpus,
    GpuNode,
    fake_gpus_of,
    gpu_node,
    shared_mps_root,
)
from tests.cluster.gpu_and_nic import NetworkCards, WithCards, network_cards
from tests.cluster.image import CannotBuild, load_image
from tests.cluster.installed import demo, helm, installed
from tests.cluster.manifests import Object, guest
from tests.cluster.mps_clients import MpsClients, mps_clients
from tests.cluster.node_driver import CDI_DIR, RealCluster, play
from tests.cluster.plane import Plane, PlaneError
from tests.cluster.restaurant import Order, Restaurant, served_throughout
from tests.support.files import files_below
from tests.support.processes import processes

WHOLE = FakeGpus("a100-40gb")
MANY = FakeGpus("h100-x16")
GUESTS = 8
MIB = 2**20
TURNS = {
    "opaque": {
        "driver": DRIVER,
        "parameters": {
            "apiVersion": "resource.nvidia.com/v1beta1",
            "kind": "GpuConfig",
            "sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Short"}},
        },
    }
}
"""Config of a claim whose GPU is changed for it, and changed back."""
ALONE = (
    "01-controlled-sharing",
    "04-time-slicing",
    "05-mps",
    "02-complex-constraints",
    "07-management-pods",
    "13-extended-resource",
    "14-shares",
    "03-several-types",
    "09-mig-on-one-gpu",
    "06-vfio-swap",
    "10-dynamic-mig",
    "12-per-container-policy",
    "11-mig-shared-memory",
    "15-sixteen-gpus",
)
"""Stories of this driver alone, in an order in which its GPUs and settings change least; none takes an alpha gate."""
WITH_NETWORK = "08-gpu-and-nic"
ALWAYS = {"01-controlled-sharing", "04-time-slicing", "05-mps"}


@pytest.fixture(scope="module", autouse=True)
def mps_root(node_plane: Plane) -> Iterator[None]:
    with shared_mps_root():
        yield


@pytest.fixture(scope="module")
def image(node_plane: Plane, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The driver's image, on the node."""
    try:
        return load_image(find(), node_plane.kubeconfig.parent, tmp_path_factory.mktemp("image"), PROJECT, PACKAGES)
    except CannotBuild as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def node(node_plane: Plane, image: str) -> Iterator[GpuNode]:
    with gpu_node(node_plane, image) as node:
        yield node


@pytest.fixture
def clients(node: GpuNode) -> Iterator[MpsClients]:
    node.pretend(WHOLE)
    with mps_clients(node) as clients:
        yield clients


@pytest.fixture
async def cluster(node: GpuNode, story: str, tmp_path: Path) -> AsyncIterator[RealCluster]:
    """The cluster with the GPUs and settings that the story is about."""
    node.pretend(fake_gpus_of(story))
    async with node.cluster(tmp_path / "node.log") as cluster:
        yield cluster


@pytest.fixture
def cards(node_plane: Plane) -> Iterator[NetworkCards]:
    """The second driver of the story."""
    with network_cards(node_plane, PROJECT / "stories" / WITH_NETWORK / "nic.py") as cards:
        yield cards


@pytest.mark.long
def test_one_command_is_all_that_a_cluster_needs(node_plane: Plane, image: str) -> None:
    command = "helm install gpu charts/dra-driver -f examples/gpu-driver/values.yaml"
    # the GPUs are fake
    with installed(node_plane, f"{command} -f examples/gpu-driver/kind/values.yaml", DRIVER) as release:
        with demo(node_plane, PROJECT) as output:
            assert "GPU_" in output
        helm(node_plane, f"helm uninstall {release}")


def test_a_client_of_mps_finds_its_daemon_which_has_its_limits_and_goes_with_it(clients: MpsClients) -> None:
    daemon, output = clients.daemon(), clients.output()
    (owner,) = daemon["metadata"]["ownerReferences"]
    folder = clients.folder()

    assert (owner["kind"], owner["name"], owner["controller"]) == ("Node", clients.node.plane.node, True)
    assert daemon["spec"]["priorityClassName"] == "system-node-critical"
    assert {"operator": "Exists"} in daemon["spec"]["tolerations"]
    assert clients.limited()
    assert clients.ask("get_default_device_pinned_mem_limit 0") == "6G"
    assert "195,   0" in output  # /dev/nvidia0, by the numbers of CDI
    assert "195, 255" in output  # /dev/nvidiactl
    assert f'{{device_type="gpu",driver="{DRIVER}",node="{clients.node.plane.node}"}} 1.0' in clients.node.metrics()
    assert folder.is_dir()
    clients.release()
    wait_until("its folder to go after it", lambda: not folder.exists())


def written_outside_mounts(folder: Path) -> int:
    """Bytes of the files in a folder, without file systems that are mounted in it; the rest of the disk is shared."""
    found = [path.lstat() for path in folder.rglob("*")]
    return sum(status.st_blocks * 512 for status in found if status.st_dev == folder.lstat().st_dev)


@pytest.mark.long
def test_root_in_a_client_of_mps_fills_and_leaves_nothing_but_its_own(node: GpuNode) -> None:
    node.pretend(FakeGpus("a100-40gb", {"mps_shm_size": "64Mi"}))
    with mps_clients(node) as clients:
        folder, memory = clients.folder(), Path("/dev/shm")
        before = shutil.disk_usage(memory).used

        assert (folder / "shm").is_mount()
        assert "No space left on device" in clients.shell("dd if=/dev/zero of=/dev/shm/filler bs=1M")
        assert shutil.disk_usage(folder / "shm").free == 0
        assert shutil.disk_usage(folder / "shm").total == 64 * MIB
        assert "Read-only file system" in clients.shell('mkdir "$CUDA_MPS_PIPE_DIRECTORY/folder"')
        assert "filler" in clients.shell_of_daemon("ls /dev/shm")
        assert clients.limited()
        assert shutil.disk_usage(memory).used - before < 32 * MIB
        assert written_outside_mounts(folder) < 32 * MIB
        assert not (memory / "filler").exists()

        # more than a container can do now: its sockets are read-only there
        (folder / "pipe/folder/in/a/folder").mkdir(parents=True)
        (folder / "pipe/link").symlink_to("/etc")
        clients.shell("rm /dev/shm/filler; mkdir -p /dev/shm/a/b/c; ln -s / /dev/shm/root; mkfifo /dev/shm/fifo")
        clients.release()
        wait_until("its folder to go", lambda: not folder.exists())
        assert str(folder) not in Path("/proc/self/mountinfo").read_text(encoding="utf-8")


def test_daemon_and_client_live_on_when_the_driver_is_replaced(clients: MpsClients) -> None:
    before, node = clients.containers(), clients.node
    (former,) = node.release.pods("node")

    node.apply(podAnnotations={"version": "next"})
    (upgraded,) = node.release.pods("node")
    node.plane.kubectl("delete", "pod", upgraded["metadata"]["name"], "--namespace", node.release.namespace)
    node.release.rolled_out("daemonset", "node")

    assert former["metadata"]["uid"] != upgraded["metadata"]["uid"]
    assert clients.containers() == before
    assert clients.limited()


@pytest.mark.long
async def test_an_upgrade_with_claims_coming_and_going_loses_nothing(node: GpuNode, tmp_path: Path) -> None:
    await asyncio.to_thread(node.pretend, MANY)
    (former,) = node.release.pods("node")
    async with node.cluster(tmp_path / "node.log") as cluster:
        before = set(await cluster.node_state())

        async def roll() -> None:
            await asyncio.to_thread(partial(node.apply, podAnnotations={"version": "under load"}))

        async with Restaurant.open(cluster.client, Order(DRIVER, "_UUID", [TURNS])) as restaurant:
            await restaurant.seat("regular")
            failures = await served_throughout(restaurant, GUESTS, roll)
            kept = set(await cluster.node_state()) - before
            await restaurant.leave("regular")
        (successor,) = node.release.pods("node")
        assert successor["metadata"]["uid"] != former["metadata"]["uid"]
        assert restaurant.lost == []
        assert failures == []
        assert len([item for item in kept if item.startswith("CDI file")]) == 1, kept
        assert len([item for item in kept if item.startswith("record of claim")]) == 1, kept
        assert set(await cluster.node_state()) == before


@pytest.mark.long
def test_uninstalling_is_refused_while_a_client_has_a_gpu_and_leaves_nothing_when_it_has_gone(
    clients: MpsClients,
) -> None:
    node, before = clients.node, clients.containers()
    with pytest.raises(PlaneError):
        node.release.helm("uninstall", node.release.name, "--timeout", "120s")
    assert node.slices()
    assert clients.containers() == before
    assert clients.limited()

    node.release.take_back()
    node.release.rolled_out("daemonset", "node")
    clients.release()
    node.release.uninstall()
    try:
        assert node.release.pods("node") == clients.daemons() == []
        assert [path for path in files_below(CDI_DIR) if DRIVER in path.name] == []
        assert [path for path in node.state_dir.rglob("*") if path.is_socket()] == []
    finally:
        node.apply()  # the next tests count on it


@pytest.mark.long
def test_a_killed_daemon_comes_back_with_its_limits(clients: MpsClients) -> None:
    client, before = clients.containers()
    # pods of MPS see the process IDs of the host
    os.kill(int((clients.folder() / "pipe" / "nvidia-cuda-mps-control.pid").read_text()), signal.SIGKILL)

    wait_until("another daemon", lambda: clients.containers()[1] != before and clients.limited())
    assert clients.containers()[0] == client


@pytest.mark.long
def test_a_daemon_whose_driver_has_lost_its_state_lives_on_and_goes_with_its_claim(clients: MpsClients) -> None:
    before = clients.containers()
    clients.node.lose_state()
    wait_until(
        "the daemon to be found again", lambda: "effect without a record taken over" in clients.node.release.log("node")
    )

    assert clients.containers() == before
    assert clients.limited()
    folder = clients.folder()
    clients.release()
    # no record names it any more: it is removed when nothing has changed in it for a while
    hour_ago = time.time() - 3600
    for path in (folder, folder / "pipe", folder / "log"):
        os.utime(path, (hour_ago, hour_ago))
    wait_until("its folder to be removed", lambda: not folder.exists())


@pytest.mark.long
@pytest.mark.alone
def test_a_drain_takes_the_client_first_and_leaves_no_daemon(clients: MpsClients) -> None:
    plane = clients.node.plane
    try:
        drained = plane.kubectl("drain", str(plane.node), "--ignore-daemonsets", "--timeout=110s").stdout
        assert clients.daemons() == []
        assert f"pod/{clients.pod()['metadata']['name']} evicted" not in drained  # its successor, which waits
        assert not clients.pod()["status"].get("containerStatuses")
    finally:
        plane.kubectl("uncordon", str(plane.node))


def test_the_nodes_account_writes_no_pods_but_daemons_of_its_own_node(node: GpuNode) -> None:
    node.pretend(WHOLE)
    plane, namespace = node.plane, node.release.namespace
    here = str(plane.node)
    as_node = (
        "--as", f"system:serviceaccount:{namespace}:gpu-node",
        "--as-user-extra", f"authentication.kubernetes.io/node-name={here}",
    )  # fmt: skip

    def refusal(
        *, namespace: str = namespace, node_name: str = here, component: str = "mps", account: str = "default"
    ) -> str:
        body = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "other", "labels": {"app.kubernetes.io/component": component}},
            "spec": {
                "nodeName": node_name,
                "serviceAccountName": account,
                "automountServiceAccountToken": False,
                "containers": [{"name": "c", "image": "busybox:stable"}],
            },
        }
        place = ("--namespace", namespace, "--dry-run=server", "--filename", "-")
        return plane.kubectl("create", *place, *as_node, stdin=json.dumps(body), check=False).stderr

    assert refusal() == ""
    assert "may write only pods with this spec.nodeName" in refusal(node_name="another-node")
    assert "may write only pods with the labels" in refusal(component="other")
    assert "may run its pods as no service account but default" in refusal(account="gpu-controller")
    assert "cannot create resource" in refusal(namespace="default")


@pytest.mark.parametrize(
    "story", [pytest.param(name, marks=[] if name in ALWAYS else pytest.mark.long) for name in ALONE]
)
async def test_story(story: str, cluster: RealCluster) -> None:
    await passes(story, cluster)


@pytest.mark.long
@pytest.mark.parametrize("story", [WITH_NETWORK])
async def test_a_claim_gets_devices_of_two_drivers(story: str, cluster: RealCluster, cards: NetworkCards) -> None:
    await passes(story, WithCards(cluster, cards))


def test_every_story_is_tried_on_a_node() -> None:
    assert sorted([*ALONE, WITH_NETWORK]) == sorted(path.parent.name for path in PROJECT.glob("stories/*/expect.yaml"))


HARDWARE = MPS_ROOT / "fake-gpus"
"""The state of fake GPUs outside the driver's folder, as that of real ones is."""


CONFIRMED = (
    f"kubectl -n {{}} wait --for=condition={DECOMMISSIONED} --timeout=300s pod -l app.kubernetes.io/component=node"
)
"""Waits until the pod of each node says that nothing is left there; the namespace is to be filled in."""


def daemon_processes(folder: Path) -> list[str]:
    """Command lines of the processes on this machine that use an MPS folder, except its clients."""
    mark = f"CUDA_MPS_PIPE_DIRECTORY={folder / 'pipe'}"
    commands = [process.command_line for process in processes() if mark in process.environment]
    return [command for command in commands if "sleep" not in command]


def left_on_the_node(node: GpuNode) -> list[str]:
    """What the driver has left on the node and in its namespace, as people read it; its GPUs are not part of it."""
    plugin_dir = KUBELET_DIR / "plugins" / DRIVER
    found = [*([plugin_dir] if plugin_dir.exists() else []), *plugin_dir.rglob("*"), *(MPS_ROOT / "mps").glob("*")]
    found += (KUBELET_DIR / "plugins_registry").glob(f"{DRIVER}*")
    found += [path for path in files_below(CDI_DIR) if DRIVER in path.name]
    mounts = [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if f"{MPS_ROOT}/mps/" in line]
    # made in every namespace, or while the release was refused its end
    others = ("configmap/kube-root-ca.crt", "serviceaccount/default")
    objects = [name for name in node.release.contents() if name not in others]
    return [*map(str, found), *mounts, *objects, *(item["metadata"]["name"] for item in node.slices())]


@pytest.mark.long
@pytest.mark.parametrize("daemon", ["pod", "child"])
def test_the_documented_commands_remove_the_driver_and_what_it_runs(daemon: str, node: GpuNode, tmp_path: Path) -> None:
    """The uninstall begins while a client runs: its guard waits for the claim, then for the node's confirmation."""
    plane, release, plugin_dir = node.plane, node.release, KUBELET_DIR / "plugins" / DRIVER
    upgrade, drain, uninstall = removal_commands(DRIVER, release.namespace, release.name)
    release.uninstall(hooks=False)  # what the tests before had may have another state directory
    wait_until("the sockets of the tests before to go", lambda: not release.pods("node"))
    shutil.rmtree(plugin_dir, ignore_errors=True)
    node.told = FakeGpus("")  # the next tests install it again
    settings = {"fake_gpus": MANY.profile, "fake_folder": str(HARDWARE), "dynamic_mig": False, "mps_daemon": daemon}
    node.apply(stateDir=None, settings=settings)
    # the clients go before the pool is waited for, also where the test fails
    with ThreadPoolExecutor() as pool, mps_clients(node) as clients:
        folder, client = clients.folder(), clients.pod()["status"]["containerStatuses"][0]["containerID"]
        assert daemon_processes(folder)
        plane.create(*guest_of_turns(), namespace=clients.namespace)
        wait_until("a GPU with other time slices", lambda: "time slice: Short\n" in done_to_gpus())
        assert (HARDWARE / "state.json").exists()
        assert list((HARDWARE / "journal").iterdir())
        assert (plugin_dir / "state.sqlite").exists()
        # of real GPUs it keeps a journal there, which is empty once everything is undone
        (plugin_dir / "author" / "journal").mkdir(parents=True, exist_ok=True)

        assert run_command(plane, upgrade, tmp_path).returncode == 0
        release.rolled_out("daemonset", "node")
        wait_until("its devices are withdrawn", lambda: not node.slices())
        drained = pool.submit(run_command, plane, f"{drain} 2>waiting", tmp_path)
        waiting = tmp_path / "waiting"
        wait_until("it waits", lambda: waiting.exists() and "waiting for 2 claims" in waiting.read_text())
        uninstalled = pool.submit(run_command, plane, uninstall, tmp_path)
        wait_until("the guard waits", lambda: running_guard(node))
        confirmed = pool.submit(run_command, plane, CONFIRMED.format(release.namespace), tmp_path)

        wait_until("the daemon, which may have been started again", lambda: daemon_processes(folder))
        assert clients.pod()["status"]["containerStatuses"][0]["containerID"] == client
        assert not any(each.done() for each in (confirmed, drained, uninstalled))
        plane.kubectl("delete", "pod", "turns", "--namespace", clients.namespace)
        wait_until("the time slices of before", lambda: "time slice: Short\n" not in done_to_gpus())
        assert daemon_processes(folder)
        assert not any(each.done() for each in (confirmed, drained, uninstalled))
        clients.release()
        condition, result, removed = confirmed.result(), drained.result(), uninstalled.result()
    assert condition.returncode == 0, condition.stderr
    assert result.returncode == 0, result.stdout
    assert f"nothing is left on 1 node: {plane.node}\n" in result.stdout
    assert removed.returncode == 0, removed.stdout + removed.stderr
    wait_until("the pods of the removal to go", lambda: not release.pods("node"))
    # what the driver's own code keeps in its state directory stays: docs/how-to/remove-a-driver.md
    own = [str(path) for path in (plugin_dir, plugin_dir / "author", plugin_dir / "author" / "gpus.json")]
    wait_until("nothing else to be left", lambda: left_on_the_node(node) == own)
    assert daemon_processes(folder) == []
    assert not (HARDWARE / "state.json").exists(), "nothing is set on a GPU any more"
    assert list((HARDWARE / "journal").iterdir()) == []


def done_to_gpus() -> str:
    """What is set on the fake GPUs, for people."""
    return "".join(path.read_text(encoding="utf-8") for path in sorted((HARDWARE / "gpus").glob("gpu-*[0-9]")))


def guest_of_turns() -> list[Object]:
    """A pod that has a GPU with time slices of its own, and its claim."""
    return guest("turns", DRIVER, "sleep", "3600", request="gpu", config=[TURNS])


def running_guard(node: GpuNode) -> bool:
    """Whether the pod that helm asks before the uninstall runs."""
    return any(pod["status"].get("phase") == "Running" for pod in node.release.pods("drain-guard"))


async def passes(story: str, cluster: RealCluster) -> None:
    """Run the story; also what it says of the GPUs is looked at."""
    result = await play(PROJECT / "stories" / story, cluster)

    assert result.unseen == ()
