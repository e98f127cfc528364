"""Claims that only CDI files contain."""

from __future__ import annotations

import json
from pathlib import Path

from dra_kit.diagnosis.who import uses_in_cdi_files
from dra_kit.kubelet.cdi.store import claim_device_name, claim_kind

UID = "5d4ba5a2-7b5c-4a54-9c0e-3b4f1f0d9a11"


def write(directory: Path, name: str, kind: str, *devices: str) -> None:
    spec = {"cdiVersion": "0.6.0", "kind": kind, "devices": [{"name": item, "containerEdits": {}} for item in devices]}
    (directory / name).write_text(json.dumps(spec))


def test_a_file_of_dra_kit_contains_request_pool_device_and_share(tmp_path: Path) -> None:
    kind = claim_kind("dra.pizza")
    plain = claim_device_name(UID, request="big/first", pool="rack.example/node-1", device="pizza-0")
    shared = claim_device_name(UID, request="gpu", pool="node-1", device="pizza-1", share_id="5d4ba5a2")
    write(tmp_path, "a.json", kind, plain, shared)
    found = uses_in_cdi_files([tmp_path])
    assert {
        (use.driver, use.request, use.pool, use.device, use.share, use.claim_uid) for use in found.values()
    } == {
        ("dra.pizza", "big", "rack.example/node-1", "pizza-0", "", UID),
        ("dra.pizza", "gpu", "node-1", "pizza-1", "5d4ba5a2", UID),
    }  # fmt: skip
    assert f"{kind}={plain}" in found


def test_files_of_other_drivers_contain_the_claim_and_static_ones_do_not(tmp_path: Path) -> None:
    write(tmp_path, "helper.json", "k8s.gpu.example.com/gpu", "common", f"{UID}-gpu-3")
    write(tmp_path, "static.json", "nvidia.com/gpu", "all", f"GPU-{UID}", f"MIG-{UID}")
    (tmp_path / "cpu.yaml").write_text(f"cdiVersion: 0.6.0\nkind: dra.cpu/cpu\ndevices:\n- name: claim-{UID}\n")
    assert {(use.driver, use.device, use.claim_uid) for use in uses_in_cdi_files([tmp_path]).values()} == {
        ("gpu.example.com", f"{UID}-gpu-3", UID),
        ("dra.cpu", f"claim-{UID}", UID),
    }


def test_corrupt_or_missing_files_hide_no_others(tmp_path: Path) -> None:
    write(tmp_path, "good.json", "k8s.gpu.example.com/gpu", f"{UID}-gpu-3")
    (tmp_path / "bad.json").write_text("{")
    (tmp_path / "list.json").write_text("[1]")
    (tmp_path / "odd.json").write_text('{"kind": "a/b", "devices": [1, {"name": 2}]}')
    (tmp_path / "bad.yaml").write_text("a: [")
    (tmp_path / "deep.json").write_text("[" * 100_000)
    (tmp_path / ".hidden.json").write_text("{}")
    assert len(uses_in_cdi_files([tmp_path / "none", tmp_path])) == 1
