"""The manifests that ``dra-kit dev`` follows, on an API server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dra_kit.client.resources import Resource
from dra_kit.sandbox.control_plane import ControlPlane
from dra_kit.sandbox.dev.session import FollowedManifests

CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap", namespaced=True)


async def test_a_file_saved_while_it_is_applied_is_applied_the_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "menu.yaml"

    def save(dish: str) -> None:
        file.write_text(f"{{apiVersion: v1, kind: ConfigMap, metadata: {{name: menu}}, data: {{dish: {dish}}}}}")

    async def saved_meanwhile(*_: Any) -> None:
        save("pasta")

    save("pizza")
    manifests = FollowedManifests([file])
    async with ControlPlane() as control_plane:
        client = await control_plane.connect("test")
        with monkeypatch.context() as patched:
            patched.setattr("dra_kit.sandbox.dev.session.dry_run", saved_meanwhile)
            assert await manifests.apply(client) == "created ConfigMap menu"
        assert (await client.get(CONFIG_MAPS, "menu", "default"))["data"] == {"dish": "pizza"}

        assert await manifests.apply(client) == "changed ConfigMap menu"
        assert (await client.get(CONFIG_MAPS, "menu", "default"))["data"] == {"dish": "pasta"}
        assert await manifests.apply(client) == ""
