from __future__ import annotations

import json
import zlib
from pathlib import Path

import pytest

from dra_kit.kubelet.device_use import FILE_NAME, read_claim_pods, read_driver_claims
from dra_kit.kubernetes.resource.objects import ClaimReference


def written(directory: Path, data: object) -> Path:
    text = data if isinstance(data, str) else json.dumps(data)
    (directory / FILE_NAME).write_text(json.dumps({"Data": text, "Checksum": zlib.crc32(text.encode())}))
    return directory


def state(claims: object) -> dict[str, object]:
    return {
        "kind": "DRACheckpoint",
        "apiVersion": "checkpoint.dra.kubelet.k8s.io/v1",
        "ClaimInfoStateList": claims,
    }


def test_checkpoint_lists_the_pods_of_all_claims(tmp_path: Path) -> None:
    written(tmp_path, state([{"ClaimUID": "uid-1", "PodUIDs": {"p": {}}}, {"ClaimUID": "uid-2", "New": 1}]))
    assert read_claim_pods(tmp_path) == {"uid-1": {"p"}, "uid-2": frozenset()}


def test_checkpoint_lists_the_claims_that_a_driver_must_release(tmp_path: Path) -> None:
    lunch = {"ClaimUID": "uid-1", "ClaimName": "lunch", "Namespace": "default"}
    other = {"ClaimUID": "uid-2", "ClaimName": "dinner", "Namespace": "default", "DriverState": {"dra.pasta": {}}}
    unprepared = {"ClaimUID": "uid-3", "ClaimName": "tea", "Namespace": "default", "DriverState": None}
    both = {**lunch, "DriverState": {"dra.pizza": {}, "dra.pasta": {}}}
    written(tmp_path, state([both, other, unprepared]))
    assert read_driver_claims(tmp_path, "dra.pizza") == {ClaimReference("default", "lunch", "uid-1")}


def test_go_writes_no_claims_as_null(tmp_path: Path) -> None:
    assert read_claim_pods(written(tmp_path, state(None))) == {}


@pytest.mark.parametrize(
    "data",
    ["", "{}", "[]", {"apiVersion": "checkpoint.dra.kubelet.k8s.io/v2"}, state([{}]), state([1]), state("all")],
    ids=str,
)
def test_unknown_checkpoint_format_is_rejected(tmp_path: Path, data: object) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_claim_pods(written(tmp_path, data))


def test_a_wrong_checksum_is_refused(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text(json.dumps({"Data": json.dumps(state([])), "Checksum": 1}))
    with pytest.raises(ValueError, match="corrupt"):
        read_claim_pods(tmp_path)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_claim_pods(tmp_path)
