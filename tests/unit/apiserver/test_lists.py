"""Lists: order, pages, selectors, forms."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest

from dra_kit.apiserver.server import ApiServer
from dra_kit.client.api import Client
from dra_kit.client.resources import CONFIG_MAPS, PODS
from dra_kit.errors import Gone, Invalid
from tests.unit.apiserver.conftest import Http, config_map, pod

PATH = "/api/v1/namespaces/default/configmaps"


def names(answer: Any) -> list[str]:
    return [item["metadata"]["name"] for item in answer["items"]]


@pytest.fixture
async def five(client: Client) -> None:
    for name in ("b", "a-b", "c.d", "a", "c"):
        await client.create(CONFIG_MAPS, config_map(name, labels={"name": name, "first": name[0]}))


@pytest.mark.usefixtures("five")
async def test_items_come_in_the_order_of_their_names(http: Http) -> None:
    _, answer, _ = await http("GET", PATH)

    assert names(answer) == ["a", "a-b", "b", "c", "c.d"]
    assert answer["kind"] == "ConfigMapList"


@pytest.mark.usefixtures("five")
async def test_pages_of_a_list_have_one_resource_version(client: Client, http: Http) -> None:
    _, first, _ = await http("GET", f"{PATH}?limit=2")
    await client.create(CONFIG_MAPS, config_map("aa"))
    await client.delete(CONFIG_MAPS, "c", "default")
    _, rest, _ = await http("GET", f"{PATH}?limit=9&continue={first['metadata']['continue']}")

    assert names(first) + names(rest) == ["a", "a-b", "b", "c", "c.d"]
    assert first["metadata"]["remainingItemCount"] == 3


@pytest.mark.usefixtures("five")
async def test_pages_of_a_compacted_version_are_gone(server: ApiServer, client: Client, http: Http) -> None:
    _, first, _ = await http("GET", f"{PATH}?limit=2")
    await client.create(CONFIG_MAPS, config_map("aa"))
    server.api.storage.compact()

    status, answer, _ = await http("GET", f"{PATH}?limit=2&continue={first['metadata']['continue']}")

    assert (status, answer["reason"]) == (410, "Expired")
    with pytest.raises(Gone):
        await client.get_path(f"{PATH}?resourceVersion=1&resourceVersionMatch=Exact")


@pytest.mark.usefixtures("five")
@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("first=a", ["a", "a-b"]),
        ("first!=a,first!=c", ["b"]),
        ("name in (a,b,nothing)", ["a", "b"]),
        ("first notin (a,b)", ["c", "c.d"]),
        ("!first", []),
        ("first", ["a", "a-b", "b", "c", "c.d"]),
    ],
)
async def test_labels_select(http: Http, selector: str, expected: list[str]) -> None:
    _, answer, _ = await http("GET", f"{PATH}?labelSelector={quote(selector)}")

    assert names(answer) == expected


@pytest.mark.parametrize("bound", ["five", "9223372036854775808", "1" * 5_000])
async def test_label_is_compared_only_with_an_int64(http: Http, bound: str) -> None:
    status, answer, _ = await http("GET", f"{PATH}?labelSelector={quote(f'rank>{bound}')}")

    assert (status, answer["reason"]) == (400, "BadRequest")
    assert answer["message"].endswith("for 'Gt', 'Lt' operators, the value must be an integer")


@pytest.mark.usefixtures("five")
async def test_fields_select(http: Http) -> None:
    _, answer, _ = await http(
        "GET", f"/api/v1/configmaps?fieldSelector={quote('metadata.name!=a,metadata.namespace=default')}"
    )

    assert names(answer) == ["a-b", "b", "c", "c.d"]


async def test_pods_are_selected_by_their_node(client: Client) -> None:
    for name, node in (("one", "node-1"), ("two", "node-2")):
        await client.create(PODS, pod(name, spec={"nodeName": node}))

    found = await client.list(PODS, field_selector="spec.nodeName=node-2")

    assert [item["metadata"]["name"] for item in found.items] == ["two"]


async def test_unsupported_field_selector_is_rejected(client: Client) -> None:
    with pytest.raises(Invalid, match=r"field label not supported: spec\.image"):
        await client.list(PODS, field_selector="spec.image=x")


@pytest.mark.usefixtures("five")
async def test_a_table_has_the_columns_of_kubectl(http: Http) -> None:
    _, answer, _ = await http("GET", PATH, Accept="application/json;as=Table;v=v1;g=meta.k8s.io")

    assert [column["name"] for column in answer["columnDefinitions"]] == ["Name", "Data", "Age"]
    assert [row["cells"][:2] for row in answer["rows"]][:2] == [["a", 0], ["a-b", 0]]
    assert answer["rows"][0]["object"]["kind"] == "PartialObjectMetadata"


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("application/json;as=Table;v=v1;g=meta.k8s.io;q=0.5,*/*", "ConfigMapList"),
        ("*/*;q=0.9,application/json;as=Table;v=v1;g=meta.k8s.io;q=0.5", "Table"),
        ("application/json;q=0.5,application/json;as=Table;v=v1;g=meta.k8s.io", "Table"),
    ],
)
async def test_preferred_form_depends_on_quality_and_on_earlier_wildcards(http: Http, accept: str, kind: str) -> None:
    _, answer, _ = await http("GET", PATH, Accept=accept)

    assert answer["kind"] == kind


@pytest.mark.usefixtures("five")
async def test_metadata_only_can_be_requested(http: Http) -> None:
    _, answer, _ = await http("GET", PATH, Accept="application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io")

    assert answer["kind"] == "PartialObjectMetadataList"
    assert answer["items"][0].keys() == {"kind", "apiVersion", "metadata"}
