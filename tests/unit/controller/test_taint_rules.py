"""DeviceTaintRules from the author's policy: complete sets, and no rules of other owners."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dra_kit as dra
from dra_kit.client.api import Client
from dra_kit.client.resources import CLUSTER_ROLES, DEVICE_TAINT_RULES
from dra_kit.controller.context import ControllerContext, ControllerOwner
from dra_kit.controller.taint_rules import LABEL, TaintRuleReconciler, plan_rules, served_taint_rules
from dra_kit.errors import ConfigurationError, InvalidDevice, NotFound
from dra_kit.kubernetes.resource import v1
from dra_kit.process.metrics import Metrics
from tests.support.api import eventually
from tests.unit.controller.cluster import DRIVER, running

BAD = dra.DeviceTaint(key="example.com/recalled", effect="NoExecute")


class Recall(dra.TaintRuleSource):
    """Yields these rules, once after each rescan."""

    def __init__(self, *rules: dra.TaintRule) -> None:
        self.rules_now: Any = list(rules)

    async def rules(self) -> AsyncIterator[Sequence[dra.TaintRule]]:
        yield self.rules_now


def rule(name: str = "recall", **options: Any) -> dra.TaintRule:
    return dra.TaintRule(**{"name": name, "taint": BAD, "device": "disk-0", **options})


def part(client: Client, source: dra.TaintRuleSource, role: str | None = None) -> TaintRuleReconciler:
    context = ControllerContext(DRIVER, None, Metrics())
    source.context = context
    return TaintRuleReconciler(DRIVER, source, client, context, ControllerOwner(client, role))


async def rules(client: Client) -> dict[str, dict[str, Any]]:
    return {item["metadata"]["name"]: item for item in (await client.list(DEVICE_TAINT_RULES)).items}


async def until(client: Client, check: Any) -> dict[str, dict[str, Any]]:
    async with asyncio.timeout(60):
        while not check(found := await rules(client)):  # noqa: ASYNC110 - what the server has sets no Event
            await asyncio.sleep(0.02)
    return found


async def test_a_rule_selects_only_devices_of_the_driver(client: Client) -> None:
    async with running(part(client, Recall(rule(pool="warehouse")))):
        [(name, made)] = (await rules(client)).items()
    assert name == f"recall.{DRIVER}"
    assert made["metadata"]["labels"] == {LABEL: DRIVER}
    assert made["spec"]["deviceSelector"] == {"driver": DRIVER, "pool": "warehouse", "device": "disk-0"}
    assert (made["spec"]["taint"]["key"], made["spec"]["taint"]["effect"]) == ("example.com/recalled", "NoExecute")


async def test_a_yielded_set_replaces_all_rules_of_the_driver(client: Client) -> None:
    source = Recall(rule("a"), rule("b"))
    async with running(part(client, source)):
        before = await rules(client)
        source.rules_now = [rule("b", device="disk-1"), rule("c")]
        source.context.rescan()
        after = await until(client, lambda found: set(found) == {f"b.{DRIVER}", f"c.{DRIVER}"})
    kept = after[f"b.{DRIVER}"]
    assert kept["metadata"]["uid"] == before[f"b.{DRIVER}"]["metadata"]["uid"]
    assert kept["spec"]["deviceSelector"]["device"] == "disk-1"
    assert kept["spec"]["taint"]["timeAdded"] == before[f"b.{DRIVER}"]["spec"]["taint"]["timeAdded"]


async def test_edited_or_deleted_rules_are_restored(client: Client) -> None:
    async with running(part(client, Recall(rule()))):
        [made] = (await rules(client)).values()
        spec = {**made["spec"], "deviceSelector": {}}
        await client.update(DEVICE_TAINT_RULES, {**made, "spec": spec})
        await until(client, lambda found: found[f"recall.{DRIVER}"]["spec"]["deviceSelector"])
        await client.delete(DEVICE_TAINT_RULES, f"recall.{DRIVER}")
        await until(client, lambda found: found)


async def test_an_empty_set_deletes_the_rules_of_the_driver_only(client: Client) -> None:
    for name, labels in (("other", {}), ("of-another-driver", {LABEL: "other.example.com"})):
        spec = {"deviceSelector": {"driver": DRIVER}, "taint": {"key": "a.b/c", "effect": "NoSchedule"}}
        await client.create(DEVICE_TAINT_RULES, {"metadata": {"name": name, "labels": labels}, "spec": spec})
    source = Recall(rule())
    async with running(part(client, source)):
        assert len(await rules(client)) == 3
        source.rules_now = []
        source.context.rescan()
        await until(client, lambda found: set(found) == {"other", "of-another-driver"})


async def test_a_rule_name_with_another_owner_is_reported(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    foreign = {"metadata": {"name": f"recall.{DRIVER}"}, "spec": {"taint": {"key": "a.b/c", "effect": "NoSchedule"}}}
    await client.create(DEVICE_TAINT_RULES, foreign)
    task = asyncio.create_task(part(client, Recall(rule(), rule("b"))).run(asyncio.Event()))
    await eventually(lambda: "failed to apply taint rules" in caplog.messages)
    task.cancel()
    found = await rules(client)
    assert found[f"recall.{DRIVER}"]["spec"]["taint"]["key"] == "a.b/c"
    assert f"b.{DRIVER}" in found
    [record] = [record for record in caplog.records if record.message == "failed to apply taint rules"]
    assert vars(record)["code"] == "taint-rule-foreign"
    assert "delete it, or name the rule differently" in vars(record)["error"]


async def test_rules_are_owned_by_the_cluster_role_of_the_controller(client: Client) -> None:
    await client.create(CLUSTER_ROLES, {"metadata": {"name": "disk-controller"}, "rules": []})
    async with running(part(client, Recall(rule()), "disk-controller")):
        [made] = (await rules(client)).values()
    assert [owner["name"] for owner in made["metadata"]["ownerReferences"]] == ["disk-controller"]


@pytest.mark.parametrize(
    ("yielded", "expected"),
    [
        ("all", "Recall.rules yielded 'all'; yield a list of dra_kit.TaintRule"),
        ([BAD], "which is not a dra_kit.TaintRule"),
        ([rule(), rule()], "Recall.rules yielded two rules named 'recall'; give each its own name"),
    ],
)
async def test_an_invalid_set_changes_nothing(
    client: Client, caplog: pytest.LogCaptureFixture, yielded: Any, expected: str
) -> None:
    source = Recall(rule())
    async with running(part(client, source)):
        source.rules_now = yielded
        source.context.rescan()
        await eventually(lambda: any("rules failed" in message for message in caplog.messages))
        assert set(await rules(client)) == {f"recall.{DRIVER}"}
    [record] = [record for record in caplog.records if "rules failed" in record.message]
    assert expected in vars(record)["error"]


class Serving:
    """An API server that serves rules in some versions."""

    def __init__(self, *versions: str) -> None:
        self.versions = versions

    async def get_path(self, path: str) -> Mapping[str, Any]:
        if path == "/version":
            return {"major": "1", "minor": "36"}
        version = path.rpartition("/")[2]
        if version == "resource.k8s.io":
            return {"versions": [{"version": "v1"}]}
        if version not in {*self.versions, "v1"}:
            raise NotFound(path, status=404)
        return {"resources": [{"name": "devicetaintrules"}] if version in self.versions else []}


@pytest.mark.parametrize(
    ("versions", "best"), [(("v1", "v1beta2"), "v1"), (("v1beta2", "v1alpha3"), "v1beta2"), (("v1alpha3",), "v1alpha3")]
)
async def test_the_newest_served_version_is_used(versions: tuple[str, ...], best: str) -> None:
    assert (await served_taint_rules(Serving(*versions))).version == best  # type: ignore[arg-type]


async def test_an_unserved_api_is_reported_with_the_remedy() -> None:
    with pytest.raises(ConfigurationError, match=r"Kubernetes 1.36\) does not serve DeviceTaintRules; upgrade"):
        await served_taint_rules(Serving())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"name": "A b"}, "TaintRule 'A b': name: Invalid value"),
        ({"device": "A b"}, "TaintRule 'recall': device: Invalid"),
        ({"taint": dra.DeviceTaint(key="", effect="NoSchedule")}, "TaintRule 'recall': taint.key"),
    ],
)
def test_a_rule_that_the_api_rejects_is_rejected_by_its_constructor(given: Mapping[str, Any], expected: str) -> None:
    with pytest.raises(InvalidDevice) as caught:
        rule(**given)
    assert str(caught.value).startswith(expected)


names = st.sampled_from(["a", "b", "c", "d"])
taint_rules = st.builds(rule, names, device=st.sampled_from(["disk-0", "disk-1", None]))
sets = st.lists(taint_rules, unique_by=lambda each: each.name)


@given(sets, sets)
def test_a_plan_changes_any_set_into_any_other(before: list[dra.TaintRule], after: list[dra.TaintRule]) -> None:
    def carried_out(stored: Sequence[v1.DeviceTaintRule], wanted: list[dra.TaintRule]) -> list[v1.DeviceTaintRule]:
        steps = plan_rules(DRIVER, wanted, stored)
        gone = {each.metadata.name for each in (*steps.deletes, *steps.updates)}
        return [each for each in stored if each.metadata.name not in gone] + [*steps.updates, *steps.creates]

    stored = carried_out(carried_out([], before), after)
    assert {each.metadata.name: each.spec for each in stored} == {
        f"{each.name}.{DRIVER}": each.to_v1(DRIVER).spec for each in after
    }
    assert not plan_rules(DRIVER, after, stored)


def test_the_source_may_be_a_plain_generator() -> None:
    class Plain(dra.TaintRuleSource):
        def rules(self) -> Iterator[Sequence[dra.TaintRule]]:
            yield [rule()]

    assert list(Plain().rules()) == [[rule()]]
