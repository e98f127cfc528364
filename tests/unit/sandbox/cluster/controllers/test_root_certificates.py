"""Each namespace has the ConfigMap kube-root-ca.crt."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from dra_kit.client.resources import CONFIG_MAPS, NAMESPACES
from dra_kit.sandbox.control_plane import ControlPlane
from tests.unit.sandbox.cluster.kubelet.polling import until

NAME = "kube-root-ca.crt"


@pytest.fixture
async def control_plane() -> AsyncIterator[ControlPlane]:
    async with ControlPlane() as made:
        yield made


async def published(control_plane: ControlPlane, namespace: str, other_than: str = "") -> dict[str, Any]:
    """The ConfigMap, once it has the right data and another UID than that one."""
    api, data = control_plane.server.api, {"ca.crt": control_plane.server.authority}

    def found() -> dict[str, Any] | None:
        return api.lookup("configmaps", f"{namespace}/{NAME}")

    await until(lambda: (now := found()) and now["data"] == data and now["metadata"]["uid"] != other_than)
    return found() or {}


@pytest.mark.parametrize("namespace", ["default", "kube-system", "team"])
async def test_namespace_gets_authority_of_the_api_server(control_plane: ControlPlane, namespace: str) -> None:
    client = await control_plane.connect("test")
    if namespace == "team":
        await client.create(NAMESPACES, {"metadata": {"name": namespace}})

    found = await published(control_plane, namespace)

    assert "BEGIN CERTIFICATE" in found["data"]["ca.crt"]
    assert found["metadata"]["annotations"]["kubernetes.io/description"].startswith("Contains a CA bundle")


async def test_deleted_config_map_is_created_again(control_plane: ControlPlane) -> None:
    client = await control_plane.connect("test")
    before = await published(control_plane, "default")

    await client.delete(CONFIG_MAPS, NAME, "default")

    await published(control_plane, "default", other_than=before["metadata"]["uid"])


async def test_changed_config_map_is_restored(control_plane: ControlPlane) -> None:
    client = await control_plane.connect("test")
    before = await published(control_plane, "default")

    await client.patch(CONFIG_MAPS, NAME, {"data": {"ca.crt": "mine", "more": "x"}}, "default")

    after = await published(control_plane, "default")
    assert after["metadata"]["uid"] == before["metadata"]["uid"]


async def test_namespace_with_nothing_else_is_gone_at_once() -> None:
    async with ControlPlane(time_scale=0.001) as slow:  # in which the contents of a namespace stay for 5,000 s
        client = await slow.connect("test")
        await client.create(NAMESPACES, {"metadata": {"name": "team"}})
        await published(slow, "team")

        await client.delete(NAMESPACES, "team")

        await until(lambda: slow.server.api.lookup("namespaces", "team") is None)
