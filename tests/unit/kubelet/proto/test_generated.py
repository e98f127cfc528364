"""The committed stubs are what the .proto files say."""

from __future__ import annotations

from pathlib import Path

import pytest

from dra_kit.kubelet.proto import generate


def generated(directory: Path) -> dict[str, str]:
    return {path.name: path.read_text() for pattern in generate.GENERATED for path in directory.glob(pattern)}


def test_stubs_are_up_to_date(tmp_path: Path) -> None:
    generate.generate(tmp_path)

    assert generated(generate.PROTO_DIR) == generated(tmp_path / "dra_kit" / "kubelet" / "proto"), "run: make proto"


@pytest.mark.parametrize("source", sorted(path.stem for path in generate.PROTO_DIR.glob("*.proto")))
def test_every_file_has_all_stubs(source: str) -> None:
    suffixes = [pattern.removeprefix("*") for pattern in generate.GENERATED]

    assert [suffix for suffix in suffixes if not (generate.PROTO_DIR / f"{source}{suffix}").is_file()] == []
