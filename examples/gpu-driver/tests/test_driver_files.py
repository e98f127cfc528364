"""What of NVIDIA's driver gets into containers: by nvidia-ctk where it is installed, else looked for."""

import json
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import dra_kit as dra
import pytest

from gpu_driver.prepare.common import CommonEdits
from gpu_driver.prepare.driver_files import driver_files
from gpu_driver.settings import Settings
from tests.conftest import Node

VERSION = "580.65.06"
ROOT = Path("/")


def spec(seen: Path) -> dict[str, Any]:
    """What nvidia-ctk 1.18 writes, cut down."""
    library = f"usr/lib/x86_64-linux-gnu/libcuda.so.{VERSION}"
    return {
        "cdiVersion": "0.5.0",
        "kind": "nvidia.com/gpu",
        "devices": [{"name": "0", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0"}]}}],
        "containerEdits": {
            "env": ["NVIDIA_VISIBLE_DEVICES=void", "NVIDIA_CTK_LIBCUDA_DIR=/usr/lib/x86_64-linux-gnu"],
            "deviceNodes": [{"path": "/dev/nvidiactl", "hostPath": f"{seen}/dev/nvidiactl"}],
            "mounts": [
                {"hostPath": f"{seen}/{library}", "containerPath": f"/{library}", "options": ["ro", "bind"]},
                {"hostPath": "/tmp/nvidia-mps", "containerPath": "/tmp/nvidia-mps", "options": ["bind"]},
            ],
            "hooks": [
                {
                    "hookName": "createContainer",
                    "path": "/usr/bin/nvidia-cdi-hook",
                    "args": ["nvidia-cdi-hook", "update-ldcache", "--folder", "/usr/lib/x86_64-linux-gnu"],
                }
            ],
        },
    }


class Double:
    """A double of nvidia-ctk beside the other programs; counts how often it is run."""

    def __init__(self, node: Node) -> None:
        [folder] = node.hardware.programs
        self.calls = folder / "nvidia-ctk.calls"
        self.program = folder / "nvidia-ctk"
        self.says(json.dumps(spec(node.hardware.host)))
        self.made = self.program.stat().st_mtime_ns

    def says(self, text: str, code: int = 0) -> None:
        self.program.write_text(
            f"#!{sys.executable}\nimport sys\nopen({str(self.calls)!r}, 'a').write(' '.join(sys.argv[1:]) + '\\n')\n"
            f"print({text!r})\nsys.exit({code})\n"
        )
        self.program.chmod(0o755)

    @property
    def runs(self) -> list[str]:
        return self.calls.read_text().splitlines()


@pytest.fixture
def double(node: Node) -> Double:
    return Double(node)


def test_libraries_of_the_drivers_version_are_mounted_with_all_names(node: Node) -> None:
    mounts = {mount.container_path: mount for mount in driver_files(replace(node.hardware, fake=False), Path("/"))}
    library = mounts["/usr/local/nvidia/lib64/libcuda.so.1"]
    assert library.host_path == f"/usr/lib/x86_64-linux-gnu/libcuda.so.{VERSION}"
    assert library.host_path == mounts[f"/usr/local/nvidia/lib64/libcuda.so.{VERSION}"].host_path
    assert "ro" in library.options


def test_libraries_below_a_driver_root_are_mounted_at_the_hosts_paths(node: Node) -> None:
    root = node.hardware.host / "run/nvidia/driver"
    root.mkdir(parents=True)
    (node.hardware.host / "usr").rename(root / "usr")
    paths = {mount.host_path for mount in driver_files(replace(node.hardware, fake=False), Path("/run/nvidia/driver"))}
    assert f"/run/nvidia/driver/usr/lib/x86_64-linux-gnu/libcuda.so.{VERSION}" in paths


def test_linked_libraries_are_mounted_from_their_real_paths(node: Node) -> None:
    """Such as where the driver is a file system image of its own; ``/`` of the links is the host's."""
    host = node.hardware.host
    (host / "usr/lib/x86_64-linux-gnu").rename(host / "image")
    (host / "usr/lib/libcuda.so.1").symlink_to("libcuda.so")
    (host / "usr/lib/libcuda.so").symlink_to("/image/libcuda.so.1")
    (host / "usr/lib/libloop.so.1").symlink_to("libloop.so.1")
    mounts = {mount.container_path: mount.host_path for mount in driver_files(replace(node.hardware, fake=False), ROOT)}
    names = ("libcuda.so", "libcuda.so.1", f"libcuda.so.{VERSION}")
    assert {name: mounts.get(f"/usr/local/nvidia/lib64/{name}") for name in names} == dict.fromkeys(
        names, f"/image/libcuda.so.{VERSION}"
    )


def test_a_script_in_front_of_a_program_is_not_mounted_in_its_place(node: Node) -> None:
    host = node.hardware.host
    for folder, content in (
        ("usr/bin", b"#!/bin/sh\nexec /usr/local/nvidia/bin/nvidia-smi"),
        ("usr/local/nvidia/bin", b"\x7fELF"),
    ):
        (host / folder).mkdir(parents=True, exist_ok=True)
        (host / folder / "nvidia-smi").unlink(missing_ok=True)
        (host / folder / "nvidia-smi").write_bytes(content)
    mounts = {mount.container_path: mount.host_path for mount in driver_files(replace(node.hardware, fake=False), ROOT)}
    assert mounts["/usr/local/nvidia/bin/nvidia-smi"] == "/usr/local/nvidia/bin/nvidia-smi"


def test_fake_libraries_are_mounted_from_their_real_paths(node: Node) -> None:
    assert all(Path(mount.host_path).exists() for mount in driver_files(node.hardware, Path("/")))


def test_without_libraries_the_claim_waits_and_the_error_names_the_setting(node: Node) -> None:
    with pytest.raises(dra.NotYet, match="--driver-root"):
        driver_files(node.hardware, Path("/opt/nothing"))


def test_nvidia_ctk_lists_the_driver_where_it_is_installed(node: Node, double: Double) -> None:
    [prepared] = node.bench.prepare("train", [node.devices["gpu-0"]])
    edits = prepared.claim_edits
    assert edits is not None
    [mount] = edits.mounts  # that of MPS is each claim's own matter
    assert mount.host_path == f"/usr/lib/x86_64-linux-gnu/libcuda.so.{VERSION}"
    assert edits.env["NVIDIA_CTK_LIBCUDA_DIR"]
    assert [hook.path for hook in edits.hooks] == ["/usr/bin/nvidia-cdi-hook"]
    nodes = [item.path for item in edits.device_nodes]
    assert len(nodes) == len(set(nodes)), "the control nodes are this driver's, which has looked at them"
    assert f"--driver-root {node.hardware.host}" in double.runs[0]


def test_nvidia_ctk_runs_once_per_driver_version(node: Node, double: Double) -> None:
    common = CommonEdits()
    settings = Settings()
    assert common.of(node.hardware, settings) == common.of(node.hardware, settings)
    assert len(double.runs) == 1
    newer = node.nvml.profile.model_copy(update={"driver_version": "590.1"})
    node.nvml.profile = newer
    common.of(node.hardware, settings)
    assert len(double.runs) == 2


def test_a_missing_control_node_is_reported_although_files_are_cached(node: Node, double: Double) -> None:
    common = CommonEdits()
    common.of(node.hardware, Settings())
    (node.hardware.host / "dev/nvidia-uvm").unlink()
    with pytest.raises(dra.NotYet, match="/dev/nvidia-uvm"):
        common.of(node.hardware, Settings())


@pytest.mark.parametrize("tool", ["nvidia-ctk", ""])
def test_missing_cached_files_are_searched_again(node: Node, double: Double, tool: str) -> None:
    common, settings = CommonEdits(), Settings(nvidia_ctk=tool)
    before = common.of(node.hardware, settings)
    library = node.hardware.host / f"usr/lib/x86_64-linux-gnu/libcuda.so.{VERSION}"
    moved = node.hardware.host / f"usr/lib64/libcuda.so.{VERSION}"
    moved.parent.mkdir()
    library.rename(moved)  # reinstalled elsewhere, in the same version
    double.says(json.dumps(spec(node.hardware.host)).replace("usr/lib/x86_64-linux-gnu", "usr/lib64"))
    os.utime(double.program, ns=(double.made, double.made))
    after = common.of(node.hardware, settings)
    assert any("usr/lib64/libcuda" in mount.host_path for mount in after.mounts)
    assert after != before


@pytest.mark.parametrize(
    ("text", "code", "problem"),
    [("Error: no NVML", 1, "no NVML"), ("no JSON", 0, "no valid CDI spec"), ("{}", 0, "no valid CDI spec")],
)
def test_an_nvidia_ctk_that_fails_is_reported_and_run_again(
    node: Node, double: Double, text: str, code: int, problem: str
) -> None:
    common = CommonEdits()
    good = double.program.read_text()
    double.says(text, code)
    with pytest.raises(dra.TransientError, match=problem):
        common.of(node.hardware, Settings())
    double.program.write_text(good)
    assert common.of(node.hardware, Settings()).mounts


def test_nvidia_ctk_is_optional(node: Node, double: Double) -> None:
    edits = CommonEdits().of(replace(node.hardware), Settings(nvidia_ctk=""))
    assert edits.mounts[0].container_path.startswith("/usr/local/nvidia/lib64")
    assert not double.calls.exists()


def test_a_whole_gpu_has_render_nodes_and_a_partition_does_not(node: Node) -> None:
    [whole] = node.bench.prepare("render", [node.devices["gpu-1"]])
    assert [item.path for item in whole.device_nodes] == ["/dev/nvidia1", "/dev/dri/card1", "/dev/dri/renderD129"]
    [part] = node.bench.prepare("train", [node.devices["gpu-0-mig-3g40gb-9-0"]])
    assert not any(item.path.startswith("/dev/dri") for item in part.device_nodes)


def test_a_gpu_without_render_nodes_is_prepared(node: Node) -> None:
    shutil.rmtree(node.hardware.host / "sys/bus/pci/devices/0000:07:00.0/drm")
    [whole] = node.bench.prepare("compute", [node.devices["gpu-0"]])
    assert [item.path for item in whole.device_nodes] == ["/dev/nvidia0"]
