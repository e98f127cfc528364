"""The clients of the Python world: kopf and kubernetes-asyncio."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any, cast

import pytest
from kubernetes_asyncio import client as generated
from kubernetes_asyncio import watch as generated_watch
from kubernetes_asyncio.client.rest import ApiException
from kubernetes_asyncio.config import load_kube_config_from_dict

from dra_kit.apiserver.authentication import Authenticator
from dra_kit.apiserver.server import ApiServer, run_in_thread
from dra_kit.client.api import Client
from dra_kit.client.credentials import Credentials
from dra_kit.client.operator import KopfThread, kopf, kopf_settings
from dra_kit.client.resources import CONFIG_MAPS
from tests.support.api import eventually
from tests.unit.apiserver.conftest import config_map, gone, pod


async def test_handlers_of_kopf_follow_an_object_through_its_life() -> None:
    calls: list[str] = []

    def build() -> tuple[kopf.OperatorRegistry, kopf.OperatorSettings]:
        registry = kopf.OperatorRegistry()

        @kopf.on.create("", "v1", "configmaps", registry=registry)
        def created(name: str, **_: Any) -> dict[str, str]:
            calls.append(f"create {name}")
            return {"seen": name}

        @kopf.on.field("", "v1", "configmaps", field="data.a", old=kopf.PRESENT, registry=registry)
        def changed(old: Any, new: Any, **_: Any) -> None:
            calls.append(f"change {old} {new}")

        @kopf.on.delete("", "v1", "configmaps", registry=registry)
        def deleted(name: str, **_: Any) -> None:
            calls.append(f"delete {name}")

        return registry, kopf_settings()

    with run_in_thread(tls=True, authenticator=Authenticator()) as server:
        operator = KopfThread(Credentials(server.connection()), build)
        operator.start()
        try:
            async with Client(Credentials(server.connection()), user_agent="tests/1") as client:
                await client.create(CONFIG_MAPS, config_map(data={"a": "1"}))
                await eventually(lambda: "create settings" in calls)
                handled = await finalized(client)
                assert any("last-handled-configuration" in key for key in handled["metadata"]["annotations"])
                await client.patch(CONFIG_MAPS, "settings", {"data": {"a": "2"}}, "default")
                await eventually(lambda: "change 1 2" in calls)
                await client.delete(CONFIG_MAPS, "settings", "default")
                await gone(client, CONFIG_MAPS, "settings")
        finally:
            assert await asyncio.to_thread(operator.stop, 60)

    assert calls == ["create settings", "change 1 2", "delete settings"]


async def finalized(client: Client) -> dict[str, Any]:
    async with asyncio.timeout(60):
        while True:
            found = await client.get(CONFIG_MAPS, "settings", "default")
            if found["metadata"].get("finalizers") and found["metadata"].get("annotations"):
                return found
            await asyncio.sleep(0.01)


async def test_kubernetes_asyncio_reads_writes_and_watches() -> None:
    configuration = generated.Configuration()
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(ApiServer(tls=True, authenticator=Authenticator()))
        await load_kube_config_from_dict(server.kubeconfig(), client_configuration=configuration)
        connection = await stack.enter_async_context(generated.ApiClient(configuration))
        core = generated.CoreV1Api(connection)
        created = await core.create_namespaced_pod("default", cast("Any", pod()))
        assert created.status.phase == "Pending"

        binding: Any = {"metadata": {"name": "pod-1"}, "target": {"kind": "Node", "name": "node-1"}}
        await core.create_namespaced_pod_binding("pod-1", "default", binding, _preload_content=False)
        await core.patch_namespaced_pod_status("pod-1", "default", {"status": {"phase": "Running"}})
        listed = await core.list_namespaced_pod("default", field_selector="spec.nodeName=node-1")
        assert [item.status.phase for item in listed.items] == ["Running"]

        watcher = generated_watch.Watch()
        events = watcher.stream(core.list_pod_for_all_namespaces, resource_version=created.metadata.resource_version)
        seen = []
        async with asyncio.timeout(60):
            async for event in events:
                seen.append((event["type"], event["object"].status.phase))
                if len(seen) == 2:
                    break
        await watcher.close()
        assert seen == [("MODIFIED", "Pending"), ("MODIFIED", "Running")]

        with pytest.raises(ApiException) as caught:
            await core.read_namespaced_pod("other", "default")
        assert caught.value.status == 404
