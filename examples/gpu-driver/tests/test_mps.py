"""MPS: a daemon for the devices of a claim, its limits, and what is left when it, the claim or the driver goes."""

import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dra_kit as dra
import pytest
import yaml
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from gpu_driver.config.pinned_memory import limits
from gpu_driver.doubles.nvidia_cuda_mps_control import PID_FILE, _Daemon
from gpu_driver.driver import driver
from gpu_driver.effects.mps.control import PROGRAM, MpsControl
from gpu_driver.effects.mps.daemon import MpsDaemon
from gpu_driver.effects.mps.limits import Limits
from gpu_driver.effects.mps.paths import MpsFolder, identity
from gpu_driver.effects.mps.pod import LABELS, MpsPod
from gpu_driver.settings import Settings
from tests.conftest import Node
from tests.mps import SOON, ask, config, mps_root, nothing_left, pid, pipe, prepare, root_of, runs

_DOUBLE_OF_SHELL = """#!/bin/sh
cd "$CUDA_MPS_PIPE_DIRECTORY" || mkdir -p "$CUDA_MPS_PIPE_DIRECTORY" && cd "$CUDA_MPS_PIPE_DIRECTORY" || exit 1
if [ "$1" = -f ]; then
  echo 100 > percentage
  echo yes > up
  while [ -e up ]; do sleep 0.1; done
  exit 0
fi
[ -e up ] || exit 1
while read -r command first second; do
  case $command in
    set_default_active_thread_percentage) echo "$first" > percentage ;;
    get_default_active_thread_percentage) read -r value < percentage; echo "$value.0" ;;
    set_default_device_pinned_mem_limit) echo "$second" > memory ;;
    get_default_device_pinned_mem_limit) read -r value < memory; echo "$value" ;;
    quit) rm up ;;
  esac
done
"""
"""A daemon that a system without Python can run."""
PROJECT = Path(__file__).parents[1]
SLICED = {**config(), "sharing": {"strategy": "TimeSlicing"}}


@pytest.fixture
def settings() -> Iterator[Settings]:
    with mps_root() as root:
        yield Settings(dynamic_mig=True, mps_root=root)


def order(node: Node, fault: str) -> None:
    (node.folder / "mps-fault").write_text(fault)


def system_with_a_shell(root: Path) -> Path:
    """A root directory with programs of this machine, each with its libraries."""
    for program in ("sh", "sleep", "mkdir", "rm"):
        found = Path(shutil.which(program) or program).resolve()
        libraries = subprocess.run(["ldd", str(found)], capture_output=True, text=True, check=True).stdout
        for file in [str(found), *re.findall(r"(/\S+) \(", libraries)]:
            copied = root / file.lstrip("/")
            copied.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, copied)
        linked = root / "bin" / program
        linked.parent.mkdir(exist_ok=True)
        if not linked.exists():
            linked.symlink_to(found)
    return root


def test_a_claim_gets_a_daemon_with_its_limits_and_leaves_nothing(node: Node) -> None:
    before = node.nvml.state.read()
    prepared = prepare(node, defaultActiveThreadPercentage=25, defaultPinnedDeviceMemoryLimit="6Gi")
    assert ask(node, prepared, "get_default_active_thread_percentage") == "25.0"
    assert ask(node, prepared, "get_default_device_pinned_mem_limit 0") == "6G"
    assert [mount.container_path for mount in prepared.mounts] == [str(pipe(prepared)), "/dev/shm"]
    daemon = pid(prepared)
    node.bench.unprepare("serve")
    assert not runs(daemon)
    assert nothing_left(node)
    assert node.nvml.state.read() == before


def test_an_unneeded_daemon_is_stopped_with_quit(node: Node) -> None:
    prepared = prepare(node)
    with (pipe(prepared).parent / "log/double.log").open() as log:  # it is read when its folder is gone
        node.bench.unprepare("serve")
        assert log.read().splitlines()[-2].endswith("Cmd:quit -t 3")


def test_output_of_queries_is_not_logged(node: Node, tmp_path: Path) -> None:
    daemon = MpsDaemon(devices=(node.first,), folder=MpsFolder(path=tmp_path))
    clock = "[2026-11-26 10:36:39.472 Control  2647] "
    chatter = ("NEW UI", "Cmd:get_default_active_thread_percentage", "100.0", "2G", "UI closed")
    assert {daemon.log_level(clock + text) for text in chatter} == {logging.DEBUG}
    news = ("Starting new server 947 for user 0", "Cmd:quit -t 3", "Server 947 exited with status 1")
    assert {daemon.log_level(clock + text) for text in news} == {logging.INFO}


def test_gpus_of_one_entry_share_a_daemon_and_limits_go_by_index(node: Node) -> None:
    devices = [node.devices["gpu-0"], node.devices["gpu-1"]]
    second = sorted(gpu.uuid for gpu in devices)[1]
    limited = config(defaultPinnedDeviceMemoryLimit="1Gi", defaultPerDevicePinnedMemoryLimit={second: "2Gi"})
    one, two = node.bench.prepare("serve", devices, config=limited, within=SOON)
    assert pipe(one) == pipe(two)
    assert ask(node, one, "get_default_device_pinned_mem_limit 0") == "1G"
    assert ask(node, one, "get_default_device_pinned_mem_limit 1") == "2G"


def test_limits_of_an_unknown_device_are_rejected_before_the_start(node: Node) -> None:
    with pytest.raises(dra.PermanentError, match="device 1 does not exist in this group of 1"):
        prepare(node, defaultPerDevicePinnedMemoryLimit={"1": "1Gi"})
    assert nothing_left(node)


def test_a_limit_ignored_by_the_daemon_is_an_error_without_leftovers(node: Node) -> None:
    order(node, "ignores-limits")
    with pytest.raises(dra.PermanentError, match="did not take the active thread percentage 25"):
        prepare(node, defaultActiveThreadPercentage=25)
    assert nothing_left(node)


def test_a_daemon_that_is_never_ready_is_released_after_the_timeout(node: Node) -> None:
    order(node, "silent")
    with pytest.raises(dra.NotYet, match="not ready yet"):
        prepare(node, within=1)
    node.bench.unprepare("serve")
    assert nothing_left(node)


def test_a_daemon_that_exits_at_once_is_reported_with_its_output(node: Node) -> None:
    order(node, "ends")
    with pytest.raises(dra.TransientError, match="failed to start"):
        prepare(node)
    assert nothing_left(node)


def test_a_killed_daemon_is_restarted_with_its_limits(node: Node) -> None:
    killed = pid(prepare(node, defaultActiveThreadPercentage=25))
    os.kill(killed, signal.SIGKILL)
    again = prepare(node, defaultActiveThreadPercentage=25)
    assert pid(again) != killed
    assert ask(node, again, "get_default_active_thread_percentage") == "25.0"


def test_a_hanging_daemon_is_restarted(node: Node) -> None:
    stopped = pid(prepare(node))
    os.kill(stopped, signal.SIGSTOP)
    again = prepare(node)
    assert not runs(stopped)
    assert runs(pid(again))


def test_two_claims_with_different_daemons_on_one_gpu_conflict(node: Node) -> None:
    prepare(node, "one")
    with pytest.raises(dra.PrepareError, match="MPS control daemon"):
        prepare(node, "two")


def test_mps_and_a_time_slice_on_one_gpu_conflict(node: Node) -> None:
    prepare(node, "one")
    with pytest.raises(dra.PrepareError, match="MPS control daemon"):
        node.bench.prepare("two", [node.devices["gpu-0"]], config=SLICED)


def test_mps_works_on_a_partition(node: Node) -> None:
    prepared = prepare(node, gpu="gpu-0-mig-3g40gb-9-0", kind="MigDeviceConfig", defaultActiveThreadPercentage=50)
    assert ask(node, prepared, "get_default_active_thread_percentage") == "50.0"
    node.bench.unprepare("serve")
    assert nothing_left(node)
    assert node.nvml.gpu_instances(node.first) == []


def test_a_claim_with_admin_access_starts_no_daemon(node: Node) -> None:
    [prepared] = node.bench.prepare("look", [node.devices["gpu-0"]], config=config(), admin_access=True)
    assert "CUDA_MPS_PIPE_DIRECTORY" not in prepared.env
    assert nothing_left(node)


@given(st.sets(st.tuples(st.sampled_from(["uid-a", "uid-b"]), st.integers(0, 3), st.sampled_from(["GPU-a", "GPU-b"]))))
def test_groups_of_a_claim_and_claims_never_share_a_folder(groups: set[tuple[str, int, str]]) -> None:
    assert len({identity(claim, entry, [device]) for claim, entry, device in groups}) == len(groups)


def test_several_users_need_an_option_of_the_daemon(node: Node) -> None:
    prepared = prepare(node, multiUser=True)
    assert "Multi-user server enabled" in (pipe(prepared).parent / "log/double.log").read_text()


def test_several_users_are_rejected_on_old_gpus(node: Node) -> None:
    old = node.devices["gpu-0"].model_copy(update={"compute_capability": (6, 1)})
    with pytest.raises(dra.PermanentError, match=r"compute capability 6\.1, and multiUser takes 7\.0"):
        node.bench.prepare("serve", [old], config=config(multiUser=True))


def test_a_folder_with_too_long_a_path_is_refused(node: Node, tmp_path: Path) -> None:
    node.settings.mps_root = tmp_path / ("long" * 20)
    with pytest.raises(dra.PermanentError, match="107 at most; set --mps-root"):
        prepare(node)


def test_without_a_daemon_the_double_answers_as_the_real_program(node: Node, tmp_path: Path) -> None:
    environment = {**node.hardware.environment, "CUDA_MPS_PIPE_DIRECTORY": str(tmp_path)}
    command = [node.hardware.needed(PROGRAM)]
    done = subprocess.run(command, input="get_server_list\n", env=environment, text=True, capture_output=True)
    assert (done.returncode, done.stderr) == (1, "Cannot find MPS control daemon process\n")


_NUMBERS = st.one_of(
    st.integers(), st.floats(), st.booleans(), st.none(),
    st.integers(0, 10**25).map(str),
    st.builds("{}{}".format, st.integers(0, 2**20), st.sampled_from(["", "Mi", "Gi", "Ti", "M", "m", "E", "e30"])),
    st.integers(1, 5000).map(lambda digits: "9" * digits),
    st.text(max_size=8),
)  # fmt: skip
_KEYS = st.one_of(
    st.sampled_from(["0", "00", "0000", "00000", "-0", "+0", "0 ", "\u0660", "GPU-", "GPU-none", "MIG-none"]),
    st.integers(1, 5000).map(lambda digits: "0" * digits),
    st.text(max_size=8),
)
_BODIES = st.fixed_dictionaries(
    {"strategy": st.sampled_from(["MPS", "TimeSlicing", "mps", ""])},
    optional={
        "mpsConfig": st.fixed_dictionaries(
            {},
            optional={
                "defaultActiveThreadPercentage": st.one_of(st.integers(-1, 102), _NUMBERS),
                "defaultPinnedDeviceMemoryLimit": _NUMBERS,
                "defaultPerDevicePinnedMemoryLimit": st.dictionaries(_KEYS, _NUMBERS, max_size=3),
                "multiUser": st.one_of(st.booleans(), _NUMBERS),
            },
        ),
        "timeSlicingConfig": st.fixed_dictionaries(
            {}, optional={"interval": st.sampled_from(["Default", "Short", "Long", "short", 1])}
        ),
    },
)


@given(_BODIES)
@hypothesis_settings(max_examples=300)
def test_accepted_limits_can_be_passed_to_a_daemon(sharing: dict[str, Any]) -> None:
    """Only a device that the claim does not have is an error later: nothing knows that before the allocation."""
    try:
        admitted = driver.configs.decode({**config(), "sharing": sharing})
    except dra.InvalidConfig:
        return
    wanted = admitted.sharing.mps
    try:
        memory = limits(
            ["GPU-0"], wanted.default_pinned_device_memory_limit, wanted.default_per_device_pinned_memory_limit
        )
    except dra.PermanentError as error:
        assert re.search("device .* does not exist in this group|is not a device of this group", str(error))
        return
    double = AnsweringDouble()
    Limits(percentage=wanted.default_active_thread_percentage, memory=dict(enumerate(memory.values()))).set_in(double)


class AnsweringDouble(MpsControl):
    """The double of the daemon, asked in this process."""

    def __init__(self) -> None:
        self._daemon = _Daemon(Path(), Path(), multi_user=False)
        self._daemon._devices = ["GPU-0"]

    def ask(self, command: str, patience: float = SOON) -> str:
        return self._daemon._answer(command.split())


class TestPods:
    """In a cluster: a pod that outlives the driver's."""

    @pytest.fixture
    def settings(self) -> Iterator[Settings]:
        with mps_root() as root:
            yield Settings(mps_daemon="pod", mps_image="gpu-driver:1", mps_namespace="dra", mps_root=root)

    def come_up(self, node: Node) -> dict[str, Any]:
        [made] = [made for name, made in node.bench.objects.items() if name.startswith("Pod/")]
        made["status"] = {"conditions": [{"type": "Ready", "status": "True"}]}
        return made

    def test_a_claim_waits_for_its_pod_and_deletes_it(self, node: Node) -> None:
        limited: dict[str, Any] = {"defaultActiveThreadPercentage": 25, "multiUser": True}
        with pytest.raises(dra.NotYet, match=r"Pod dra/mps-uid-serve-.* is not ready yet"):
            prepare(node, within=0, **limited)
        pod = self.come_up(node)
        prepared = prepare(node, within=0, **limited)
        spec = pod["spec"]
        assert spec["nodeName"] == "node-1"
        assert spec["tolerations"] == [{"operator": "Exists"}]
        [container] = spec["containers"]
        environment = {item["name"]: item["value"] for item in container["env"]}
        assert container["image"] == "gpu-driver:1"
        assert environment["CUDA_VISIBLE_DEVICES"] == node.first
        assert environment["MPS_MULTI_USER"] == "true"
        assert environment["CUDA_MPS_PIPE_DIRECTORY"] == prepared.env["CUDA_MPS_PIPE_DIRECTORY"]
        folder = pipe(prepared).parent
        assert [(mount.host_path, mount.container_path) for mount in prepared.mounts] == [
            (str(folder / "pipe"), str(folder / "pipe")),
            (str(folder / "shm"), "/dev/shm"),
        ]
        node.bench.unprepare("serve")
        assert nothing_left(node)
        assert not node.bench.objects

    def test_a_pod_and_a_time_slice_on_one_gpu_conflict(self, node: Node) -> None:
        with pytest.raises(dra.NotYet):
            prepare(node, "one", within=0)
        with pytest.raises(dra.PrepareError, match="Pod dra/mps-uid-one"):
            node.bench.prepare("two", [node.devices["gpu-0"]], config=SLICED)

    @pytest.mark.parametrize("double", [True, False], ids=["of-the-image", "on-path"])
    def test_the_program_of_the_pod_sets_limits_answers_and_quits(
        self, node: Node, tmp_path: Path, double: bool
    ) -> None:
        program = node.hardware.needed(PROGRAM)
        root = Path(tempfile.mkdtemp(prefix="mps-")) if double else Path("/")
        path = os.environ["PATH"] if double else f"{Path(program).parent}:{os.environ['PATH']}"
        with self.served(node, PATH=path, MPS_DOUBLE="true" if double else "", MPS_DRIVER_ROOT=str(root)) as folder:
            control = MpsControl([program], {**node.hardware.environment, **folder.environment})
            assert control.ask("get_default_device_pinned_mem_limit 0") == "1G"
        assert not control.answers()
        assert not (folder.pipe / PID_FILE).exists()

    @pytest.mark.skipif(os.geteuid() != 0, reason="another root directory is NOT tested: that takes the rights of root")
    def test_the_hosts_daemon_runs_in_the_root_of_the_host(self, node: Node, tmp_path: Path) -> None:
        root = system_with_a_shell(tmp_path / "driver")
        daemon = root / "usr/bin" / PROGRAM
        daemon.write_text(_DOUBLE_OF_SHELL)
        daemon.chmod(0o755)
        with self.served(node, MPS_DRIVER_ROOT=str(root), PATH=os.environ["PATH"]) as folder:
            pipe = root / folder.pipe.relative_to("/")
            assert (pipe / "percentage").read_text() == "25\n"
            assert (pipe / "memory").read_text() == "1024M\n"
            assert not list(folder.pipe.iterdir()), "it does not run in the system of the driver's container"
        assert not (pipe / "up").exists()

    def test_the_double_imports_nothing_from_the_folder_in_which_it_is_started(
        self, node: Node, tmp_path: Path
    ) -> None:
        (tmp_path / "argparse.py").write_text("open('ran', 'w')\n")
        (tmp_path / "selectors.py").write_text("open('ran', 'w')\n")
        with self.served(node, tmp_path, MPS_DOUBLE="true"):
            pass
        assert not (tmp_path / "ran").exists()

    @contextmanager
    def served(self, node: Node, cwd: Path | None = None, **environment: str) -> Iterator[MpsFolder]:
        """What the pod runs, until it is asked to end; it must do so in order."""
        folder = MpsFolder(path=root_of(node) / "served")
        folder.make()
        variables = {
            **node.hardware.environment,
            **folder.environment,
            "CUDA_VISIBLE_DEVICES": node.first,
            "MPS_LIMITS": Limits(percentage=25, memory={0: "1024M"}).model_dump_json(),
            **environment,
        }
        command = [sys.executable, "-P", "-m", "gpu_driver.effects.mps.serve"]
        with subprocess.Popen(command, env=variables, cwd=cwd) as served:
            until = time.monotonic() + SOON
            while subprocess.run([*command, "ask"], env=variables, cwd=cwd).returncode:
                assert served.poll() is None
                assert time.monotonic() < until
            yield folder
            served.terminate()
            assert served.wait(SOON) == 0

    def test_another_release_of_the_driver_does_not_change_the_pod(self, node: Node) -> None:
        with pytest.raises(dra.NotYet):
            prepare(node, within=0)
        pod = self.come_up(node)
        prepare(node, within=0)
        node.settings.mps_image = "gpu-driver:2"
        prepare(node, within=0)
        [kept] = node.bench.objects.values()
        assert kept["metadata"]["uid"] == pod["metadata"]["uid"]
        assert kept["spec"]["containers"][0]["image"] == "gpu-driver:1"

    def test_a_pod_terminated_by_node_shutdown_is_created_again(self, node: Node) -> None:
        with pytest.raises(dra.NotYet):
            prepare(node, within=0)
        self.come_up(node)
        prepare(node, within=0)
        ended = self.come_up(node)
        ended["status"]["phase"] = "Failed"
        with pytest.raises(dra.NotYet):
            prepare(node, within=0)
        assert self.come_up(node)["metadata"]["uid"] != ended["metadata"]["uid"]

    def test_chart_values_grant_the_rights_of_daemon_pods(self) -> None:
        values = yaml.safe_load((PROJECT / "values.yaml").read_text(encoding="utf-8"))["node"]
        [(namespace, granted)] = values["namespacedRules"].items()
        assert namespace == values["settings"]["mps_namespace"]
        # listed, too, to be found again where the driver's state was lost
        assert granted == [{**rule, "verbs": [*rule["verbs"], "list"]} for rule in MpsPod.rules()]
        assert MpsPod.namespaces(Settings(mps_daemon="pod", mps_image="gpu-driver:1", mps_namespace="dra")) == ["dra"]
        assert MpsPod.namespaces(Settings()) == []
        assert values["effectPods"]["labels"] == LABELS

    def test_pods_need_an_image_and_a_namespace(self) -> None:
        with pytest.raises(ValueError, match="set mps_image and mps_namespace too"):
            Settings(mps_daemon="pod")
