"""Error texts for users of a claim contain nothing of other namespaces, and no host paths."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

import pytest

import dra_kit as dra
from dra_kit.errors import PermanentError
from dra_kit.kubelet.sockets import operation_link
from dra_kit.kubernetes.resource.objects import ClaimReference
from dra_kit.node.operation_socket import STATUS, ask
from tests.support.api import eventually
from tests.unit.node.drivers import Oven, driver
from tests.unit.node.hardware import Baker, Heat, kitchen
from tests.unit.node.role import DRIVER, Node

OTHER = ("team-a", "secret-project", "220", "/srv/ovens", "uid-secret-project")
"""What is the other tenant's, or the host's."""


def baker(temperature: int = 300, oven: str = "/srv/ovens/1") -> Baker:
    return Baker(ovens={"": oven}, temperatures={"secret-project": 220, "mine": temperature})


async def read_of(node: Node, claim: ClaimReference) -> list[str]:
    """All that the users of a claim read: the kubelet's message and the Events."""
    answer = await node.error(claim)
    found: list[dict[str, Any]] = []

    def events() -> list[dict[str, Any]]:
        found[:] = [item for item in node.events() if item["metadata"]["namespace"] == claim.namespace]
        return found

    await eventually(events)
    # not their times and names, whose digits are any
    return [answer, *(json.dumps({"regarding": item["regarding"], "note": item["note"]}) for item in found)]


def assert_not_told(texts: list[str], words: tuple[str, ...] = OTHER) -> None:
    assert [(word, text) for word in words for text in texts if word in text] == []


async def test_an_effect_conflict_does_not_name_claims_of_other_namespaces(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    theirs = node.claim("secret-project", ["pizza-0"], namespace="team-a")
    mine = node.claim("mine", ["pizza-1"], namespace="team-b")
    async with node.running(kitchen(baker())):
        await node.prepare(theirs)
        texts = await read_of(node, mine)
        assert_not_told(texts)
        assert texts[0] == (
            'claim team-b/mine needs heat {"oven":"(a path)","temperature":300}, but another claim holds (a path) with '
            "other settings; wait until that claim is released, or ask the cluster's administrators, who find it in "
            "the driver's log"
        )
        logged = next(record for record in caplog.records if record.msg == "claim not prepared")
        assert "but claim team-a/secret-project holds /srv/ovens/1 with heat" in vars(logged)["error"]


async def test_status_shows_the_full_text_of_a_conflict(node: Node) -> None:
    theirs = node.claim("secret-project", ["pizza-0"], namespace="team-a")
    mine = node.claim("mine", ["pizza-1"], namespace="team-b")
    async with node.running(kitchen(baker())):
        await node.prepare(theirs)
        await node.error(mine)
        status = await ask(operation_link(node.root, DRIVER), STATUS)
        assert "claim team-a/secret-project holds /srv/ovens/1" in json.dumps(status)


async def test_a_conflict_within_a_namespace_names_the_claim_and_its_config(node: Node) -> None:
    theirs = node.claim("secret-project", ["pizza-0"], namespace="team-b")
    mine = node.claim("mine", ["pizza-1"], namespace="team-b")
    async with node.running(kitchen(baker())):
        await node.prepare(theirs)
        assert await node.error(mine) == (
            'claim team-b/mine needs heat {"oven":"(a path)","temperature":300}, but claim team-b/secret-project holds '
            '(a path) with heat {"oven":"(a path)","temperature":220}; ask for the same, or wait until that claim is '
            "released"
        )


async def test_only_holders_in_the_same_namespace_are_named(node: Node) -> None:
    far = node.claim("secret-project", ["pizza-0"], namespace="team-a")
    near = node.claim("near", ["pizza-2"], namespace="team-b")
    mine = node.claim("mine", ["pizza-1"], namespace="team-b")
    cook = baker(oven="oven")
    cook.temperatures["near"] = 220
    async with node.running(kitchen(cook)):
        await node.prepare(far)
        await node.prepare(near)
        texts = await read_of(node, mine)
        assert "but claim team-b/near and others holds oven" in texts[0]
        assert_not_told(texts, ("team-a", "secret-project"))


async def test_a_failing_revert_of_another_tenants_effect_is_not_named(node: Node) -> None:
    async def fails(what: str, temperature: int) -> None:
        if what == "revert":
            raise OSError(2, "No such file", f"/srv/ovens/{temperature}")

    theirs = node.claim("secret-project", ["pizza-0"], namespace="team-a")
    mine = node.claim("mine", ["pizza-1"], namespace="team-b")
    async with node.running(kitchen(baker(oven="oven"))):
        await node.prepare(theirs)
        Heat.hardware.fail = fails
        node.api.delete("resourceclaims", "secret-project", "team-a")
        with pytest.raises(Exception, match="secret-project"):
            await node.unprepare(theirs)
        texts = await read_of(node, mine)
        assert_not_told(texts)


@pytest.mark.parametrize("over", [False, True], ids=["allocated twice", "over"])
async def test_the_holder_of_a_device_is_not_named_in_another_namespace(over: bool, node: Node) -> None:
    theirs = node.claim("secret-project", namespace="team-a")
    mine = node.claim("mine", namespace="team-b")
    async with node.running(driver()):
        await node.prepare(theirs)
        if over:
            node.api.delete("resourceclaims", "secret-project", "team-a")
        texts = await read_of(node, mine)
        assert "device node-1/pizza-0 of claim team-b/mine is still prepared for another claim, " in texts[0]
        assert_not_told(texts)


RAISED: dict[str, Callable[[], Exception]] = {
    "file": lambda: FileNotFoundError(2, "No such file or directory", "/srv/ovens/1"),
    "text": lambda: RuntimeError("cannot open '/srv/ovens/with blank/1' or /srv/ovens/2."),
    "configuration": lambda: dra.ConfigurationError("/srv/ovens/1 is missing"),
}


@pytest.mark.parametrize("kind", RAISED)
async def test_paths_in_unexpected_errors_of_the_driver_stay_in_the_log(
    kind: str, node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(dra.Preparer):
        def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
            error = RAISED[kind]()
            raise error

    mine = node.claim("mine", namespace="team-b")
    async with node.running(driver(Broken())):
        texts = await read_of(node, mine)
        assert_not_told(texts, ("/srv",))
        assert "(a path)" in texts[0]
    assert any("/srv/ovens" in str(vars(record).get("error", "")) for record in caplog.records)


async def test_a_public_text_of_the_driver_is_unchanged(node: Node) -> None:
    class Strict(dra.Preparer):
        def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
            raise PermanentError("mount /data of your config twice is not possible")

    mine = node.claim("mine", namespace="team-b")
    async with node.running(driver(Strict())):
        assert await node.error(mine) == "mount /data of your config twice is not possible"


async def test_users_read_the_public_text_and_administrators_the_full_text(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    class Discreet(dra.Preparer):
        def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
            raise dra.TransientError("oven 7 of team-a is hot", public="the oven is hot; it is tried again")

    mine = node.claim("mine", namespace="team-b")
    caplog.set_level(logging.INFO)
    async with node.running(driver(Discreet(), provider=Oven())):
        texts = await read_of(node, mine)
        assert texts[0] == "the oven is hot; it is tried again"
        assert_not_told(texts)
    assert any(vars(record).get("error") == "oven 7 of team-a is hot" for record in caplog.records)
