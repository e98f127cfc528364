from __future__ import annotations

import json
import tempfile
import zlib
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_kit.errors import KubeletError
from dra_kit.kubelet.device_use import FILE_NAME
from dra_kit.kubelet.plugin_client import DeviceAnswer
from dra_kit.kubernetes.resource.objects import ClaimReference
from dra_kit.sandbox.kubelet.claim_manager import Checkpoint, ClaimInfo

TEXTS = st.text(min_size=1, max_size=5)
DEVICES = st.builds(
    DeviceAnswer,
    request_names=st.lists(TEXTS, max_size=2).map(tuple),
    pool_name=TEXTS,
    device_name=TEXTS,
    cdi_device_ids=st.lists(TEXTS, max_size=2).map(tuple),
    share_id=st.none() | TEXTS,
)


def _some_skipped(info: ClaimInfo) -> ClaimInfo:
    return replace(info, skipped=dict.fromkeys(list(info.drivers)[1:], ("NodePrepareResources",)))


CLAIMS = st.builds(
    ClaimInfo,
    claim=st.builds(ClaimReference, TEXTS, TEXTS, TEXTS),
    pods=st.sets(TEXTS, max_size=3),
    drivers=st.dictionaries(TEXTS, st.lists(DEVICES, max_size=2).map(tuple), max_size=2),
).map(_some_skipped)


@given(st.lists(CLAIMS, max_size=3), st.lists(CLAIMS, max_size=3))
def test_what_was_stored_last_is_loaded(before: list[ClaimInfo], claims: list[ClaimInfo]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        Checkpoint(Path(directory)).store(before)
        Checkpoint(Path(directory)).store(claims)
        assert Checkpoint(Path(directory)).load() == claims


def test_missing_checkpoint_is_empty(tmp_path: Path) -> None:
    assert Checkpoint(tmp_path).load() == []


def test_the_format_is_the_kubelets(tmp_path: Path) -> None:
    claim = ClaimReference("kitchen", "lunch", "uid-1")
    device = DeviceAnswer(("pizza",), "node-a", "pizza-0", ("dra.pizza/claim=c-1",), None)
    Checkpoint(tmp_path).store([ClaimInfo(claim, {"pod-2", "pod-1"}, {"dra.pizza": (device,)})])
    outer = json.loads((tmp_path / FILE_NAME).read_text())
    assert outer["Checksum"] == zlib.crc32(outer["Data"].encode())
    assert json.loads(outer["Data"]) == {
        "kind": "DRACheckpoint",
        "apiVersion": "checkpoint.dra.kubelet.k8s.io/v1",
        "ClaimInfoStateList": [
            {
                "ClaimUID": "uid-1",
                "ClaimName": "lunch",
                "Namespace": "kitchen",
                "PodUIDs": {"pod-1": {}, "pod-2": {}},
                "DriverState": {
                    "dra.pizza": {
                        "Devices": [
                            {
                                "PoolName": "node-a",
                                "DeviceName": "pizza-0",
                                "ShareID": None,
                                "RequestNames": ["pizza"],
                                "CDIDeviceIDs": ["dra.pizza/claim=c-1"],
                            }
                        ]
                    }
                },
            }
        ],
    }


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"Data": "{}", "Checksum": 1}', '{"Data": 3, "Checksum": 1}'])
def test_corrupt_checkpoint_is_rejected(tmp_path: Path, content: str) -> None:
    (tmp_path / FILE_NAME).write_text(content)
    with pytest.raises(KubeletError, match="error loading DRA manager state"):
        Checkpoint(tmp_path).load()


def test_unwritable_checkpoint_directory_is_reported(tmp_path: Path) -> None:
    with pytest.raises(KubeletError, match=r"checkpoint ResourceClaim state: .*No such file"):
        Checkpoint(tmp_path / "missing").store([])
