"""CDI specs that vendors' tools write, as edits of a preparer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import dra_kit as dra
from dra_kit.kubelet.cdi import spec as cdi
from dra_kit.kubelet.cdi.edits import build_claim_spec
from dra_kit.kubernetes.resource import v1

# as `nvidia-ctk cdi generate` writes it, with less of everything
GPUS: dict[str, Any] = {
    "cdiVersion": "0.7.0",
    "kind": "nvidia.com/gpu",
    "devices": [
        {"name": "0", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0"}, {"path": "/dev/dri/card1"}]}},
        {
            "name": "GPU-1d2e",
            "containerEdits": {
                "env": ["GPU=1d2e=x"],
                "deviceNodes": [
                    {"path": "/dev/nvidia1", "hostPath": "/run/nvidia/driver/dev/nvidia1", "permissions": "rw"}
                ],
            },
        },
    ],
    "containerEdits": {
        "env": ["NVIDIA_VISIBLE_DEVICES=void", "GPU=none"],
        "deviceNodes": [{"path": "/dev/nvidiactl"}],
        "hooks": [
            {
                "hookName": "createContainer",
                "path": "/usr/bin/nvidia-cdi-hook",
                "args": ["nvidia-cdi-hook", "update-ldcache", "--folder", "/usr/lib64"],
                "env": ["NVIDIA_CTK_DEBUG=false"],
            },
            {
                "hookName": "createContainer",
                "path": "/usr/bin/nvidia-cdi-hook",
                "args": ["nvidia-cdi-hook", "disable-device-node-modification"],
            },
        ],
        "mounts": [
            {
                "hostPath": "/usr/lib64/libcuda.so.1",
                "containerPath": "/usr/lib64/libcuda.so.1",
                "options": ["ro", "nosuid", "nodev", "rbind", "rprivate"],
            }
        ],
        "additionalGids": [44],
    },
}


def with_edits(**edits: Any) -> dict[str, Any]:
    return {**GPUS, "containerEdits": {**GPUS["containerEdits"], **edits}}


def test_a_container_gets_the_edits_of_the_spec_and_then_those_of_the_device() -> None:
    edits = dra.edits_from_cdi(GPUS, device="GPU-1d2e")
    assert edits.env == {"NVIDIA_VISIBLE_DEVICES": "void", "GPU": "1d2e=x"}
    assert [(node.path, node.host_path, node.permissions) for node in edits.device_nodes] == [
        ("/dev/nvidiactl", None, None),
        ("/dev/nvidia1", "/run/nvidia/driver/dev/nvidia1", "rw"),
    ]
    assert [hook.args[1] for hook in edits.hooks] == ["update-ldcache", "disable-device-node-modification"]
    assert list(edits.additional_gids) == [44]


def test_claim_gets_the_edits_of_the_cdi_spec() -> None:
    edits = dra.edits_from_cdi(GPUS, device="0")
    result = v1.DeviceRequestAllocationResult(request="gpu", driver="gpu.example.com", pool="node-1", device="gpu-0")
    spec, _ = build_claim_spec("gpu.example.com", "uid-1", [(result, dra.Prepared(**dict(edits)))], [None])
    assert spec is not None
    whole = cdi.Spec.model_validate_json(json.dumps(GPUS))
    [device] = spec.devices
    assert device.container_edits.mounts == whole.container_edits.mounts
    assert device.container_edits.hooks == whole.container_edits.hooks
    assert device.container_edits.device_nodes == (
        *whole.container_edits.device_nodes,
        *whole.devices[0].container_edits.device_nodes,
    )


def test_a_file_a_text_and_bytes_are_taken_in_json_and_yaml(tmp_path: Path) -> None:
    expected = dra.edits_from_cdi(GPUS, device="nvidia.com/gpu=0")
    path = tmp_path / "nvidia.yaml"
    path.write_text(json.dumps(GPUS, indent=2))
    assert dra.edits_from_cdi(path, device="0") == expected
    assert dra.edits_from_cdi(path.read_text(), device="0") == expected
    yaml = "cdiVersion: 0.5.0\nkind: v.example/c\ndevices:\n- name: a\n  containerEdits: {env: [A=b]}\n"
    assert dra.edits_from_cdi(yaml.encode(), device="a").env == {"A": "b"}


@pytest.mark.parametrize(
    ("spec", "device", "problem"),
    [
        (GPUS, "GPU-1d2f", 'CDI spec of nvidia.com/gpu has no device GPU-1d2f; did you mean "GPU-1d2e"?'),
        (GPUS, "7", "has no device 7; it has 0, GPU-1d2e"),
        (GPUS, "amd.com/gpu=0", "has no device amd.com/gpu=0; "),
        ("/etc/cdi/nvidia.yaml", "0", "give a Path for a file"),
        (with_edits(mount=[]), "0", "mount"),
        (with_edits(env=["A"]), "0", "containerEdits.env[0]: an entry is NAME=value"),
        (with_edits(intelRdt={"closID": "a/b"}), "0", "containerEdits.intelRdt.closID: 'a/b'"),
    ],
)
def test_unusable_cdi_spec_is_rejected(spec: Any, device: str, problem: str) -> None:
    with pytest.raises(dra.InvalidPrepared) as caught:
        dra.edits_from_cdi(spec, device=device)
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)


def test_settings_of_resctrl_are_among_the_edits() -> None:
    settings = {"closID": "gold", "l3CacheSchema": "L3:0=f", "memBwSchema": "MB:0=50"}
    edits = dra.edits_from_cdi(with_edits(intelRdt=settings), device="0")
    assert edits.intel_rdt == dra.IntelRdt(clos_id="gold", l3_cache_schema="L3:0=f", mem_bw_schema="MB:0=50")


def test_missing_cdi_file_is_a_transient_error(tmp_path: Path) -> None:
    with pytest.raises(dra.TransientError, match=r"nvidia\.yaml cannot be read: No such file"):
        dra.edits_from_cdi(tmp_path / "nvidia.yaml", device="0")
