"""Statuses and finalizers of claims whose opaque parameters are not the JSON that Go writes."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import aiohttp
import pytest

from dra_kit.apiserver.server import ApiServer
from dra_kit.client.api import Client
from dra_kit.client.claim_writes import write_device_statuses, write_finalizers
from dra_kit.client.credentials import Connection, Credentials
from dra_kit.client.resources import RESOURCE_CLAIMS
from dra_kit.errors import Conflict, Invalid, NotFound
from dra_kit.kubernetes.resource.objects import ClaimReference

DRIVER = "pizza.example"
SORTED, UNSORTED, SPACED, ESCAPED = '{"a":1,"b":2}', '{"b":2,"a":1}', '{ "a": 1 }', '{"a":"salt & oil"}'
COLLECTION = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
Entry = dict[str, Any]


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with ApiServer() as running:
        yield running


@pytest.fixture
async def client(server: ApiServer) -> AsyncIterator[Client]:
    async with Client(Credentials(Connection(server.url)), user_agent="tests/1") as connected:
        yield connected


def condition(kind: str, status: str = "True") -> Entry:
    return {
        "type": kind,
        "status": status,
        "reason": "Said",
        "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }


def entry(device: str, *conditions: Entry, driver: str = DRIVER, **others: Any) -> Entry:
    return (
        {"driver": driver, "pool": "p", "device": device}
        | ({"conditions": list(conditions)} if conditions else {})
        | others
    )


async def claim(server: ApiServer, parameters: str, devices: Sequence[Entry] = ()) -> ClaimReference:
    """A claim with these parameters as text; two devices of the driver, one with a binding condition, are allocated."""
    opaque = f'{{"driver":"{DRIVER}","parameters":{parameters}}}'
    kind = '"apiVersion":"resource.k8s.io/v1","kind":"ResourceClaim"'
    requests = '"requests":[{"name":"r","exactly":{"deviceClassName":"x","allocationMode":"ExactCount","count":3}}]'
    spec = f'{{"devices":{{{requests},"config":[{{"opaque":{opaque}}}]}}}}'
    results = [
        {"request": "r", "driver": "net.example", "pool": "p", "device": "other"},
        {"request": "r", "driver": DRIVER, "pool": "p", "device": "d0"},
        {"request": "r", "driver": DRIVER, "pool": "p", "device": "d1", "bindingConditions": ["Attached"],
         "bindingFailureConditions": ["Broken"]},
    ]  # fmt: skip
    config = f'[{{"source":"FromClaim","opaque":{opaque}}}]'
    allocation = f'{{"devices":{{"results":{json.dumps(results)},"config":{config}}}}}'
    async with aiohttp.ClientSession(server.url, headers={"Content-Type": "application/json"}) as session:

        async def send(method: str, path: str, body: str) -> Any:
            async with session.request(method, path, data=body) as answer:
                assert answer.status in {200, 201}, await answer.text()
                return await answer.json()

        made = await send("POST", COLLECTION, f'{{{kind},"metadata":{{"name":"one"}},"spec":{spec}}}')
        status = f'{{"allocation":{allocation},"devices":{json.dumps(list(devices))}}}'
        body = f'{{{kind},"metadata":{json.dumps(made["metadata"])},"spec":{spec},"status":{status}}}'
        await send("PUT", f"{COLLECTION}/one/status", body)
    return ClaimReference("default", "one", made["metadata"]["uid"])


async def statuses(client: Client) -> list[Mapping[str, Any]]:
    """``status.devices``, without what the API server adds."""
    found = (await client.get(RESOURCE_CLAIMS, "one", "default"))["status"].get("devices") or []
    return [{name: value for name, value in item.items() if value is not None} for item in found]


PARAMETERS = pytest.mark.parametrize("parameters", [SORTED, UNSORTED, SPACED, ESCAPED])


@PARAMETERS
async def test_statuses_are_written_whatever_the_text_of_parameters_is(
    server: ApiServer, client: Client, parameters: str
) -> None:
    reference = await claim(server, parameters, [entry("other", driver="net.example", data={"x": 1})])

    await write_device_statuses(client, reference, [entry("d0", condition("Ready"), data={"n": 1})], DRIVER)

    assert await statuses(client) == [
        entry("other", driver="net.example", data={"x": 1}),
        entry("d0", condition("Ready"), data={"n": 1}),
    ]


@PARAMETERS
async def test_what_is_no_longer_reported_is_removed(server: ApiServer, client: Client, parameters: str) -> None:
    reference = await claim(server, parameters)
    before = [entry("d0", condition("Ready"), condition("Warm"), data={"n": 1}), entry("d1", data={"n": 2})]
    await write_device_statuses(client, reference, before, DRIVER)

    await write_device_statuses(client, reference, [entry("d0", condition("Ready", "False"))], DRIVER)

    assert await statuses(client) == [entry("d0", condition("Ready", "False"))]


@PARAMETERS
async def test_node_and_controller_leave_what_the_other_reported(
    server: ApiServer, client: Client, parameters: str
) -> None:
    reference = await claim(server, parameters)
    await write_device_statuses(client, reference, [entry("d1", condition("Attached"))], DRIVER, binding=True)
    await write_device_statuses(client, reference, [entry("d1", condition("Ready"), data={"n": 1})], DRIVER)
    await write_device_statuses(client, reference, [entry("d1", condition("Broken"))], DRIVER, binding=True)

    [written] = await statuses(client)
    conditions = {item["type"] for item in written["conditions"]}
    assert (conditions, written["data"]) == ({"Ready", "Broken"}, {"n": 1})

    await write_device_statuses(client, reference, [], DRIVER)

    [left] = await statuses(client)
    assert [item["type"] for item in left["conditions"]] == ["Broken"]
    assert "data" not in left


@PARAMETERS
async def test_a_condition_that_both_report_has_the_last_value(
    server: ApiServer, client: Client, parameters: str
) -> None:
    reference = await claim(server, parameters)
    await write_device_statuses(client, reference, [entry("d1", condition("Attached"))], DRIVER, binding=True)

    await write_device_statuses(client, reference, [entry("d1", condition("Attached", "False"))], DRIVER)

    assert await statuses(client) == [entry("d1", condition("Attached", "False"))]


@PARAMETERS
async def test_another_claim_of_the_same_name_is_not_written(
    server: ApiServer, client: Client, parameters: str
) -> None:
    await claim(server, parameters)
    former = ClaimReference("default", "one", "6c1a0a52-52f1-4bb0-9a93-3f1c2f4f6d10")

    with pytest.raises(Conflict):
        await write_device_statuses(client, former, [entry("d0", data={"n": 1})], DRIVER)

    assert await statuses(client) == []


@PARAMETERS
async def test_a_claim_that_has_changed_since_it_was_read_is_not_written(
    server: ApiServer, client: Client, parameters: str
) -> None:
    reference = await claim(server, parameters)
    read = (await client.get(RESOURCE_CLAIMS, "one", "default"))["metadata"]["resourceVersion"]
    await write_device_statuses(client, reference, [entry("d0", data={"n": 1})], DRIVER)

    with pytest.raises(Conflict):
        await write_device_statuses(
            client, reference, [entry("d1", condition("Attached"))], DRIVER, binding=True, resource_version=read
        )


async def test_what_the_api_server_rejects_for_another_reason_is_reported(server: ApiServer, client: Client) -> None:
    reference = await claim(server, UNSORTED)

    with pytest.raises(Invalid, match="not-allocated"):
        await write_device_statuses(client, reference, [entry("not-allocated", data={"n": 1})], DRIVER)
    with pytest.raises(NotFound):
        await write_device_statuses(client, ClaimReference("default", "two", reference.uid), [], DRIVER)


@PARAMETERS
async def test_finalizers_are_written_whatever_the_text_of_parameters_is(
    server: ApiServer, client: Client, parameters: str
) -> None:
    await claim(server, parameters)
    read = await client.get(RESOURCE_CLAIMS, "one", "default")

    await write_finalizers(client, read, ["example.com/kept"])

    found = await client.get(RESOURCE_CLAIMS, "one", "default")
    assert found["metadata"]["finalizers"] == ["example.com/kept"]
    assert found["spec"] == read["spec"]
