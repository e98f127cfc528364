"""What the code on a node reads of the cluster: declared objects, in every kind of method, and nothing else."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import pytest

import dra_kit as dra
from dra_kit.errors import KubeletError
from dra_kit.testing import unit
from tests.support.api import eventually
from tests.unit.node.drivers import Oven, Waiter
from tests.unit.node.role import DRIVER, Node

MENU = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "menu", "namespace": "kitchen", "labels": {"day": "monday"}},
    "data": {"dish": "margherita"},
}
DECLARED = [dra.Reads("v1", "configmaps", namespace="kitchen")]


class Cook(dra.Preparer):
    """Reads the menu in a thread."""

    def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
        menu = self.context.api.get("v1", "configmaps", "menu", "kitchen").result()
        return dra.Prepared(env={"DISH": menu["data"]["dish"] if menu else "none"})


class AsyncCook(dra.Preparer):
    """Reads the menu in the event loop."""

    async def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
        menu = await self.context.api.get("v1", "configmaps", "menu", "kitchen")
        return dra.Prepared(env={"DISH": menu["data"]["dish"] if menu else "none"})


def driver(preparer: dra.Preparer, reads: Sequence[dra.Reads] = DECLARED, **parts: Any) -> dra.Driver:
    return dra.Driver(DRIVER, **{"provider": Oven(), "preparer": preparer, "reads": reads, **parts})


@pytest.mark.parametrize("preparer", [Cook(), AsyncCook()], ids=["def", "async-def"])
async def test_prepare_reads_the_object_as_it_is_now(node: Node, preparer: dra.Preparer) -> None:
    async with node.running(driver(preparer)):
        first, second = node.claim("first"), node.claim("second", devices=["pizza-1"])
        await node.prepare(first)
        node.api.put("configmaps", MENU)
        await node.prepare(second)
        assert (node.env(first), node.env(second)) == (["DISH=none"], ["DISH=margherita"])


async def test_discover_reads_in_an_event_loop_that_is_not_that_of_the_process(node: Node) -> None:
    class Listing(dra.DeviceProvider):
        async def discover(self) -> AsyncIterator[Sequence[dra.Device]]:
            found = await self.context.api.list("v1", "configmaps", "kitchen", label_selector="day=monday")
            yield [dra.Device(name=item["metadata"]["name"]) for item in found]

    node.api.put("configmaps", MENU)
    node.api.put("configmaps", {**MENU, "metadata": {"name": "soup", "namespace": "kitchen"}})
    async with node.running(driver(Waiter(), provider=Listing())):
        await eventually(lambda: node.published() == ["menu"])


@pytest.mark.parametrize(
    ("reads", "declare"),
    [
        (
            [],
            r'Driver\(reads=\[dra.Reads\("v1", "configmaps", namespace="kitchen"\)\]\), or without namespace= for all',
        ),
        ([dra.Reads("v1", "configmaps", namespace="hall")], "get configmaps kitchen/menu is not declared"),
        ([dra.Reads("v1", "configmaps", names=["wine"])], "get configmaps kitchen/menu is not declared"),
        ([dra.Reads("v1", "secrets", namespace="kitchen")], "get configmaps kitchen/menu is not declared"),
    ],
)
async def test_undeclared_object_is_refused_with_the_declaration_to_add(
    node: Node, reads: Sequence[dra.Reads], declare: str
) -> None:
    node.api.put("configmaps", MENU)
    async with node.running(driver(Cook(), reads)):
        with pytest.raises(KubeletError, match=declare):
            await node.prepare(node.claim())
        assert not node.api.asked("GET", "/api/v1/namespaces/kitchen/configmaps/menu")


async def test_undeclared_secret_is_refused_with_a_declaration_for_its_namespace_only() -> None:
    class Opener(dra.Preparer):
        def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
            self.context.api.get("v1", "secrets", "key", "kitchen")
            return dra.Prepared()

    async with unit(driver(Opener(), [])) as bench:
        with pytest.raises(dra.ConfigurationError, match=r'"secrets", namespace="kitchen"\)\]\)$'):
            await bench.prepare("lunch", [dra.Device(name="pizza-0")])


async def test_objects_declared_by_name_are_read_and_not_listed() -> None:
    class Lister(dra.Preparer):
        def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
            assert self.context.api.get("v1", "configmaps", "menu", "kitchen").result()
            self.context.api.list("v1", "configmaps", "kitchen")
            return dra.Prepared()

    by_name = dra.Reads("v1", "configmaps", namespace="kitchen", names=["menu"])
    async with unit(driver(Lister(), [by_name]), objects=[MENU]) as bench:
        with pytest.raises(dra.ConfigurationError, match="list configmaps kitchen is not declared") as caught:
            await bench.prepare("lunch", [dra.Device(name="pizza-0")])
    assert caught.value.code == "undeclared-read"


@pytest.mark.parametrize(
    ("plural", "name", "namespace", "problem"),
    [
        ("configmaps", None, "kitchen", "name must be a text, got None"),
        ("configmaps", "menu", 7, "namespace must be a text, got 7"),
        ("configmaps", "menu", None, "configmaps are in namespaces; write namespace=…"),
        ("nodes", "node-1", "kitchen", "nodes are not in namespaces; omit namespace=…"),
    ],
)
async def test_object_that_cannot_be_read_is_refused_before_a_request(
    plural: str, name: Any, namespace: Any, problem: str
) -> None:
    """Without a name, the API server would return all objects of the kind."""

    class Reader(dra.Preparer):
        def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
            self.context.api.get("v1", plural, name, namespace)
            return dra.Prepared()

    reads = [dra.Reads("v1", "configmaps"), dra.Reads("v1", "nodes")]
    async with unit(driver(Reader(), reads), objects=[MENU]) as bench:
        with pytest.raises(dra.ConfigurationError, match=problem):
            await bench.prepare("lunch", [dra.Device(name="pizza-0")])


async def test_result_in_an_event_loop_is_refused_instead_of_blocking_it() -> None:
    class Blocking(dra.Preparer):
        async def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
            self.context.api.get("v1", "configmaps", "menu", "kitchen").result()
            return dra.Prepared()

    async with unit(driver(Blocking()), objects=[MENU]) as bench:
        with pytest.raises(dra.ConfigurationError, match=r"write 'await self\.context\.api\.get\(…\)'"):
            await bench.prepare("lunch", [dra.Device(name="pizza-0")])


def test_unit_test_gives_the_objects_that_the_code_reads() -> None:
    nad = {
        "apiVersion": "k8s.cni.cncf.io/v1",
        "kind": "NetworkAttachmentDefinition",
        "metadata": {"name": "fast", "namespace": "default", "labels": {"speed": "100g"}},
    }

    class Attacher(dra.Preparer):
        def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
            api, kind = self.context.api, ("k8s.cni.cncf.io/v1", "network-attachment-definitions")
            one = api.get(*kind, name="fast", namespace=claim.namespace).result()
            found = api.list(*kind, label_selector="speed in (100g)").result()
            assert one is not None
            return dra.Prepared(env={"ONE": one["kind"], "FOUND": str(len(found))})

    reads = [dra.Reads("k8s.cni.cncf.io/v1", "network-attachment-definitions")]
    with unit(driver(Attacher(), reads), objects=[nad]) as bench:
        [prepared] = bench.prepare("lunch", [dra.Device(name="pizza-0")])
    assert prepared.env == {"ONE": "NetworkAttachmentDefinition", "FOUND": "1"}


class Tuned(dra.Effect[str], id="tuned"):
    """Reads an object and the settings where it changes hardware."""

    def keys(self) -> list[str]:
        return ["oven"]

    def apply(self, previous: str | None) -> str:
        menu = self.context.api.get("v1", "configmaps", "menu", "kitchen").result()
        return f"{menu['data']['dish'] if menu else 'none'} on {self.context.node.name}"

    def holds(self, outcome: str) -> bool:
        return self.context.state_dir.is_dir()

    def revert(self, outcome: str | None) -> None:
        (self.context.state_dir / "reverted").write_text(str(outcome))


class Tuner(dra.Preparer):
    def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
        return dra.Prepared(env={"TUNED": device.ensure(Tuned()).result()})


async def test_effect_has_the_context_in_all_its_methods(node: Node) -> None:
    node.api.put("configmaps", MENU)
    lunch = node.claim()
    async with node.running(driver(Tuner(), effects=[Tuned])) as agent:
        await node.prepare(lunch)
        assert node.env(lunch) == ["TUNED=margherita on node-1"]
        assert agent.supervisor.status()["effects"].error == ""
        await node.unprepare(lunch)
        assert (node.root / "state" / "author" / "reverted").read_text() == "margherita on node-1"


def test_effect_in_a_unit_test_has_the_context() -> None:
    with unit(driver(Tuner(), effects=[Tuned]), objects=[MENU]) as bench:
        [prepared] = bench.prepare("lunch", [dra.Device(name="pizza-0")])
        assert prepared.env == {"TUNED": "margherita on node-1"}
        bench.unprepare("lunch")


def test_effect_that_was_called_without_a_context_says_where_it_has_one() -> None:
    with pytest.raises(dra.ConfigurationError, match=r"effect Tuned has no context: .*effect\.with_context"):
        Tuned().apply(None)


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"api_version": "configmaps"}, "api_version 'configmaps' is not valid; write 'v1' for core kinds"),
        ({"plural": "ConfigMaps"}, "plural 'ConfigMaps' is not valid; write the plural of the kind in lower case"),
        ({"plural": "*"}, r"plural '\*' is not valid"),
        ({"plural": "pods/log"}, "plural 'pods/log' is not valid"),
        ({"namespace": "a/b"}, "namespace 'a/b' is not the name of a namespace"),
        ({"names": "menu"}, r"write names=\['menu'\]"),
        ({"plural": "secrets"}, "secrets of all namespaces would be readable"),
    ],
)
def test_invalid_declaration_is_refused(wrong: Mapping[str, Any], problem: str) -> None:
    with pytest.raises(dra.ConfigurationError, match=problem):
        dra.Reads(**{"api_version": "v1", "plural": "configmaps", **wrong})


@pytest.mark.parametrize("declared", [dra.Reads, dra.WatchedObject])
@pytest.mark.parametrize(
    ("namespace", "problem"),
    [
        (lambda _: None, "returned None, which is not the name of a namespace"),
        (lambda _: "", "returned '', which is not the name of a namespace"),
        (lambda _: "*", r"returned '\*', which is not the name of a namespace"),
        (lambda settings: settings.town, "failed with the driver's settings: AttributeError"),
    ],
    ids=["none", "empty", "all", "no-settings"],
)
def test_namespace_of_the_settings_never_becomes_all_namespaces(declared: Any, namespace: Any, problem: str) -> None:
    kind = {"api_version": "v1"} if declared is dra.Reads else {"group": "", "version": "v1", "name": "key"}
    with pytest.raises(dra.ConfigurationError, match=problem):
        declared(plural="secrets", namespace=namespace, **kind).namespace_for(None)


def test_driver_refuses_what_is_not_a_declaration() -> None:
    with pytest.raises(dra.ConfigurationError, match=r"reads: 'configmaps' is not a dra_kit\.Reads"):
        driver(Cook(), ["configmaps"])  # type: ignore[list-item]
