"""Creating, reading and changing objects."""

from __future__ import annotations

import pytest

from dra_kit.client.api import Client
from dra_kit.client.resources import CONFIG_MAPS, PODS, RESOURCE_CLAIMS
from dra_kit.errors import Conflict, Invalid, NotFound
from tests.unit.apiserver.conftest import Http, claim, config_map, pod

CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"


async def test_new_object_gets_the_fields_that_only_the_server_sets(client: Client) -> None:
    created = await client.create(PODS, pod() | {"status": {"phase": "Running"}})

    assert created["metadata"].keys() >= {"uid", "resourceVersion", "creationTimestamp", "generation", "managedFields"}
    assert created["status"] == {"phase": "Pending", "qosClass": "BestEffort"}
    assert await client.get(PODS, "pod-1", "default") == created


async def test_defaults_of_the_api_are_filled_in(client: Client) -> None:
    created = await client.create(RESOURCE_CLAIMS, claim())

    [request] = created["spec"]["devices"]["requests"]
    assert request["exactly"] == {"deviceClassName": "gpu.example.com", "allocationMode": "ExactCount", "count": 1}


async def test_generate_name_gives_each_object_a_unique_name(client: Client) -> None:
    prefix = config_map() | {"metadata": {"generateName": "settings-", "namespace": "default"}}

    names = {(await client.create(CONFIG_MAPS, prefix))["metadata"]["name"] for _ in range(5)}

    assert len(names) == 5
    assert all(name.startswith("settings-") and len(name) == len("settings-") + 5 for name in names)


async def test_a_taken_name_is_a_conflict(client: Client) -> None:
    await client.create(CONFIG_MAPS, config_map())

    with pytest.raises(Conflict, match="already exists"):
        await client.create(CONFIG_MAPS, config_map())


async def test_create_in_a_missing_namespace_is_rejected(http: Http) -> None:
    status, answer, _ = await http("POST", "/api/v1/namespaces/nowhere/configmaps", config_map(namespace="nowhere"))

    assert (status, answer["message"]) == (404, 'namespaces "nowhere" not found')


async def test_a_dry_run_answers_and_stores_nothing(client: Client) -> None:
    answer = await client.create(CONFIG_MAPS, config_map(), dry_run=True)

    assert answer["metadata"]["uid"]
    with pytest.raises(NotFound):
        await client.get(CONFIG_MAPS, "settings", "default")


async def test_invalid_objects_are_refused_with_the_path_of_each_error(client: Client) -> None:
    with pytest.raises(Invalid) as caught:
        await client.create(PODS, pod(name="Pod", labels={"a b": "c"}) | {"spec": {"containers": []}})

    assert [path for path, _ in caught.value.causes] == ["metadata.name", "metadata.labels", "spec.containers"]


@pytest.mark.parametrize(
    ("validation", "status", "warnings"),
    [("Ignore", 201, 0), ("Warn", 201, 1), ("", 201, 1), ("Strict", 400, 0)],
)
async def test_unknown_fields_are_reported_as_the_validation_level_requests(
    http: Http, validation: str, status: int, warnings: int
) -> None:
    body = claim()
    body["spec"]["devices"]["bogus"] = 1

    code, answer, told = await http("POST", f"{CLAIMS}?fieldValidation={validation}", body)

    assert (code, len(told)) == (status, warnings)
    text = told[0] if told else str(answer)
    assert ("spec.devices.bogus" in text) is (validation != "Ignore")


async def test_update_of_a_stale_version_is_a_conflict(client: Client) -> None:
    first = await client.create(CONFIG_MAPS, config_map(data={"a": "1"}))
    second = await client.update(CONFIG_MAPS, first | {"data": {"a": "2"}})

    with pytest.raises(Conflict, match="has been modified"):
        await client.update(CONFIG_MAPS, first | {"data": {"a": "3"}})
    assert (await client.get(CONFIG_MAPS, "settings", "default"))["data"] == {"a": "2"} == second["data"]


async def test_an_update_without_a_difference_writes_nothing(client: Client) -> None:
    created = await client.create(RESOURCE_CLAIMS, claim())

    assert await client.update(RESOURCE_CLAIMS, created) == created


async def test_the_generation_of_a_pod_counts_changes_of_its_spec(client: Client) -> None:
    await client.create(PODS, pod())

    labelled = await client.patch(PODS, "pod-1", {"metadata": {"labels": {"a": "b"}}}, "default")
    deadline = await client.patch(PODS, "pod-1", {"spec": {"activeDeadlineSeconds": 60}}, "default")

    assert (labelled["metadata"]["generation"], deadline["metadata"]["generation"]) == (1, 2)


async def test_the_status_is_written_through_its_subresource_only(client: Client) -> None:
    created = await client.create(PODS, pod())
    status = {"phase": "Running", "qosClass": "BestEffort"}

    through_object = await client.update(PODS, created | {"status": status})
    through_status = await client.patch(
        PODS, "pod-1", {"status": {"phase": "Running"}}, "default", subresource="status"
    )

    assert through_object["status"]["phase"] == "Pending"
    assert through_status["status"] == status


async def test_the_spec_of_a_claim_never_changes(client: Client) -> None:
    created = await client.create(RESOURCE_CLAIMS, claim())
    created["spec"]["devices"]["requests"][0]["name"] = "other"

    with pytest.raises(Invalid, match="field is immutable"):
        await client.update(RESOURCE_CLAIMS, created)


@pytest.mark.parametrize("version", ["v1", "v1beta2", "v1beta1"])
async def test_an_object_is_served_in_every_version(client: Client, http: Http, version: str) -> None:
    await client.create(RESOURCE_CLAIMS, claim())

    _, answer, warnings = await http("GET", CLAIMS.replace("v1", version) + "/claim-1")

    assert answer["apiVersion"] == f"resource.k8s.io/{version}"
    [request] = answer["spec"]["devices"]["requests"]
    assert (request if version == "v1beta1" else request["exactly"])["deviceClassName"] == "gpu.example.com"
    assert bool(warnings) is (version != "v1")


async def test_an_event_is_one_object_in_both_groups(http: Http) -> None:
    event = {"metadata": {"name": "e"}, "involvedObject": {"kind": "Node", "name": "n"}, "message": "text"}
    await http("POST", "/api/v1/namespaces/default/events", event)

    _, answer, _ = await http("GET", "/apis/events.k8s.io/v1/namespaces/default/events/e")

    assert answer["note"] == "text"
    assert answer["regarding"]["name"] == "n"


async def test_an_event_of_the_new_group_has_the_new_form_and_stays(http: Http) -> None:
    path = "/apis/events.k8s.io/v1/namespaces/default/events"
    event = {"metadata": {"name": "e"}, "regarding": {"kind": "Node", "name": "n"}, "note": "text"}
    form = {"eventTime": "2026-01-01T00:00:00.000000Z", "type": "Normal", "reason": "R", "action": "A",
            "reportingController": "a", "reportingInstance": "i"}  # fmt: skip

    _, refused, _ = await http("POST", path, event)
    created, _, _ = await http("POST", path, event | form)
    merge = "application/merge-patch+json"
    changed, _, _ = await http("PATCH", f"{path}/e", {"note": "other"}, content_type=merge)

    assert [cause["field"] for cause in refused["details"]["causes"]] == ["eventTime", "type"]
    assert (created, changed) == (201, 422)
