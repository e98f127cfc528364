"""The committed stubs are what the .proto files say."""

from __future__ import annotations

from pathlib import Path

import pytest

from dra_kit.kubelet.proto import generate

FOLDERS = sorted(generate.GENERATED)
SOURCES = [source for folder in FOLDERS for source in sorted(folder.glob("*.proto"))]


def generated(directory: Path, patterns: tuple[str, ...]) -> dict[str, str]:
    return {path.name: path.read_text() for pattern in patterns for path in directory.glob(pattern)}


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("proto")
    generate.generate(out)
    return out


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.parent.name)
def test_stubs_are_up_to_date(fresh: Path, folder: Path) -> None:
    patterns = generate.GENERATED[folder]

    assert generated(folder, patterns) == generated(fresh / folder.relative_to(generate.IMPORT_ROOT), patterns), (
        "run: make proto"
    )


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.stem)
def test_every_file_has_all_stubs(source: Path) -> None:
    suffixes = [pattern.removeprefix("*") for pattern in generate.GENERATED[source.parent]]

    assert [suffix for suffix in suffixes if not source.with_name(f"{source.stem}{suffix}").is_file()] == []
