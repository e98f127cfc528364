"""CustomResourceDefinitions and the kinds that they make."""

from __future__ import annotations

from typing import Any

import pytest

from dra_kit.client.api import APPLY, Client
from dra_kit.client.resources import CUSTOM_RESOURCE_DEFINITIONS, Resource
from dra_kit.errors import KubeError, NotFound
from tests.unit.apiserver.conftest import Http, definition

OVENS = Resource("kitchen.example.com", "v1", "ovens", "Oven", namespaced=True)


@pytest.fixture
async def ovens(client: Client) -> dict[str, Any]:
    version = {
        "name": "v1", "served": True, "storage": True, "subresources": {"status": {}},
        "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": {"description": "How hot."}}}},
        "additionalPrinterColumns": [{"name": "Heat", "type": "integer", "jsonPath": ".spec.heat"}],
    }  # fmt: skip
    return await client.create(CUSTOM_RESOURCE_DEFINITIONS, definition("Oven", version))


def oven(**spec: Any) -> dict[str, Any]:
    meta = {"name": "o", "namespace": "default"}
    return {"apiVersion": "kitchen.example.com/v1", "kind": "Oven", "metadata": meta, "spec": spec}


async def test_a_definition_is_established_at_once(ovens: dict[str, Any], http: Http) -> None:
    _, found, _ = await http("GET", "/apis/kitchen.example.com/v1")

    conditions = {item["type"]: item["status"] for item in ovens["status"]["conditions"]}
    assert conditions == {"NamesAccepted": "True", "Established": "True"}
    assert [item["name"] for item in found["resources"]] == ["ovens", "ovens/status"]


async def test_discovery_shows_the_singular_name_of_the_definition(client: Client, http: Http) -> None:
    body = definition("Oven", {"name": "v1", "served": True, "storage": True})
    body["spec"]["names"]["singular"] = "stove"
    await client.create(CUSTOM_RESOURCE_DEFINITIONS, body)

    _, found, _ = await http("GET", "/apis/kitchen.example.com/v1")

    assert found["resources"][0]["singularName"] == "stove"


@pytest.mark.usefixtures("ovens")
async def test_custom_objects_keep_unknown_fields(client: Client) -> None:
    await client.create(OVENS, oven(heat=200, deep={"list": [1, {"a": None}]}))

    changed = await client.patch(OVENS, "o", {"spec": {"heat": 250}, "status": {"hot": True}}, "default")
    status = await client.patch(OVENS, "o", {"status": {"hot": True}}, "default", subresource="status")

    assert changed["spec"] == {"heat": 250, "deep": {"list": [1, {"a": None}]}}
    assert "status" not in changed
    assert status["status"] == {"hot": True}
    assert status["metadata"]["generation"] == 2


@pytest.mark.usefixtures("ovens")
async def test_server_side_apply_merges_objects_and_replaces_lists(client: Client) -> None:
    async def apply(manager: str, **spec: Any) -> Any:
        options: Any = {"content_type": APPLY, "field_manager": manager}
        return (await client.patch(OVENS, "o", oven(**spec), "default", **options))["spec"]

    await apply("one", heat=200, racks=[1, 2], light={"on": True})
    both = await apply("two", light={"color": "red"})
    rest = await apply("one", heat=250)

    assert both == {"heat": 200, "racks": [1, 2], "light": {"on": True, "color": "red"}}
    assert rest == {"heat": 250, "light": {"color": "red"}}


@pytest.mark.usefixtures("ovens")
async def test_openapi_shows_the_schema_of_the_definition(http: Http) -> None:
    _, document, _ = await http("GET", "/openapi/v3/apis/kitchen.example.com/v1")

    schema = document["components"]["schemas"]["com.example.kitchen.v1.Oven"]
    assert schema["properties"].keys() == {"apiVersion", "kind", "metadata", "spec"}


@pytest.mark.usefixtures("ovens")
async def test_the_table_has_the_columns_of_the_definition(client: Client, http: Http) -> None:
    await client.create(OVENS, oven(heat=200))

    _, answer, _ = await http("GET", OVENS.path("default"), Accept="application/json;as=Table;v=v1;g=meta.k8s.io")

    assert [column["name"] for column in answer["columnDefinitions"]] == ["Name", "Heat"]
    assert answer["rows"][0]["cells"] == ["o", 200]


@pytest.mark.usefixtures("ovens")
async def test_without_its_definition_a_kind_is_gone(client: Client) -> None:
    await client.create(OVENS, oven())

    await client.delete(CUSTOM_RESOURCE_DEFINITIONS, "ovens.kitchen.example.com")

    with pytest.raises(NotFound):
        await client.list(OVENS)


async def test_a_definition_needs_the_name_of_its_resource(client: Client, ovens: dict[str, Any]) -> None:
    body = ovens | {"metadata": {"name": "other.kitchen.example.com"}}

    with pytest.raises(KubeError, match=r"metadata\.name"):
        await client.create(CUSTOM_RESOURCE_DEFINITIONS, body)


COLUMN = {"name": "Heat", "type": "integer", "jsonPath": ".spec.heat"}
NO_PATH = {key: value for key, value in COLUMN.items() if key != "jsonPath"}
SIMPLE = "must be a simple json path starting with ."
TYPES = "must be one of boolean,date,integer,number,string"
FORMATS = "must be one of byte,date,date-time,double,float,int32,int64,password"


@pytest.mark.parametrize(
    ("columns", "told"),  # as kube-apiserver 1.37 says it
    [
        ([NO_PATH], ["spec.additionalPrinterColumns[0].JSONPath: Required value"]),
        ([COLUMN | {"jsonPath": ""}], ["spec.additionalPrinterColumns[0].JSONPath: Required value"]),
        ([COLUMN | {"jsonPath": "spec.heat"}], [
            f'spec.additionalPrinterColumns[0].JSONPath: Invalid value: "spec.heat": {SIMPLE}']),
        ([COLUMN, COLUMN | {"type": "text"}], [
            f'spec.additionalPrinterColumns[1].type: Invalid value: "text": {TYPES}']),
        ([COLUMN | {"format": "int63"}], [
            f'spec.additionalPrinterColumns[0].format: Invalid value: "int63": {FORMATS}']),
        ([{}], [
            "spec.additionalPrinterColumns[0].name: Required value",
            f"spec.additionalPrinterColumns[0].type: Required value: {TYPES}",
            "spec.additionalPrinterColumns[0].JSONPath: Required value"]),
    ],
)  # fmt: skip
async def test_a_column_that_shows_nothing_is_refused(http: Http, columns: list[Any], told: list[str]) -> None:
    status, answer, _ = await http("POST", CUSTOM_RESOURCE_DEFINITIONS.path(), defined([columns]))

    assert status == 422
    assert [f"{cause['field']}: {cause['message']}" for cause in answer["details"]["causes"]] == told


@pytest.mark.parametrize(
    ("versions", "field"),
    [
        ([[NO_PATH], []], "spec.versions[0].additionalPrinterColumns[0].JSONPath"),
        ([[NO_PATH], [NO_PATH]], "spec.additionalPrinterColumns[0].JSONPath"),
        ([[COLUMN], [NO_PATH]], "spec.versions[1].additionalPrinterColumns[0].JSONPath"),
    ],
)
async def test_a_column_is_of_its_version_where_they_differ(http: Http, versions: list[Any], field: str) -> None:
    status, answer, _ = await http("POST", CUSTOM_RESOURCE_DEFINITIONS.path(), defined(versions))

    assert (status, [cause["field"] for cause in answer["details"]["causes"]]) == (422, [field])


def defined(columns: list[list[Any]]) -> dict[str, Any]:
    """A definition whose versions have these columns."""
    versions = [
        {"name": f"v{number}", "served": True, "storage": number == 1, "additionalPrinterColumns": shown,
         "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}}
        for number, shown in enumerate(columns, 1)
    ]  # fmt: skip
    return definition("Oven", *versions)
