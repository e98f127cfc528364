"""The kubeconfig of a sandbox: written, and removed, only where it is the sandbox's own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dra_kit.apiserver.server import ApiServer
from dra_kit.errors import ConfigurationError
from dra_kit.sandbox.directory import write_kubeconfig

DOCUMENT = ApiServer().kubeconfig()


def test_kubeconfig_is_private_and_removed_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"

    with write_kubeconfig(path, DOCUMENT):
        assert json.loads(path.read_text()) == DOCUMENT
        assert path.stat().st_mode & 0o777 == 0o600

    assert list(tmp_path.iterdir()) == []


def test_kubeconfig_replaces_an_empty_file_and_that_of_a_killed_sandbox(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    path.touch()

    with write_kubeconfig(path, DOCUMENT):
        left = path.read_bytes()
    path.write_bytes(left)
    path.chmod(0o644)

    with write_kubeconfig(path, DOCUMENT):
        assert json.loads(path.read_text()) == DOCUMENT


@pytest.mark.parametrize(
    "text",
    [
        "apiVersion: v1\nkind: Config\ncurrent-context: dra-kit\nclusters: [{name: dra-kit}, {name: production}]\n",
        json.dumps(DOCUMENT | {"current-context": "production"}),
        json.dumps(DOCUMENT | {"clusters": [*DOCUMENT["clusters"], {"name": "production"}]}),
        "[" * 50_000,
        "my notes",
    ],
    ids=["yaml", "context", "clusters", "deep", "text"],
)
def test_kubeconfig_does_not_replace_other_files(tmp_path: Path, text: str) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(text)
    path.chmod(0o600)

    with pytest.raises(ConfigurationError, match="not written by a sandbox"), write_kubeconfig(path, DOCUMENT):
        pass

    assert path.read_text() == text


@pytest.mark.parametrize("target", ["victim", "nowhere"])
def test_a_planted_link_is_not_followed(tmp_path: Path, target: str) -> None:
    path = tmp_path / "kubeconfig"
    (tmp_path / "victim").touch()
    path.symlink_to(target)

    with pytest.raises(ConfigurationError, match="name another"), write_kubeconfig(path, DOCUMENT):
        pass

    assert (tmp_path / "victim").read_text() == ""
    assert not (tmp_path / "nowhere").exists()


def test_replaced_kubeconfig_is_kept_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    (tmp_path / "mine").write_text("mine")

    with write_kubeconfig(path, DOCUMENT):
        path.unlink()
        path.symlink_to("mine")
    assert path.read_text() == "mine"
    path.unlink()

    with write_kubeconfig(path, DOCUMENT):
        (tmp_path / "mine").replace(path)
    assert path.read_text() == "mine"


def test_edited_kubeconfig_is_kept_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"

    with write_kubeconfig(path, DOCUMENT):
        path.write_text(json.dumps(DOCUMENT | {"clusters": [*DOCUMENT["clusters"], {"name": "production"}]}))

    assert "production" in path.read_text()


def test_unwritable_path_of_a_kubeconfig_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "nowhere" / "kubeconfig"

    with pytest.raises(ConfigurationError, match="cannot be written"), write_kubeconfig(path, DOCUMENT):
        pass
