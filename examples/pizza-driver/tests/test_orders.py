"""Tests of the driver in the sandbox, with the manifests of the stories."""

from __future__ import annotations

from pathlib import Path

import pytest
from dra_kit.testing import Harness, Invalid

STORIES = Path(__file__).parents[1] / "stories"


def test_order_by_claim(dra: Harness) -> None:
    dra.apply(STORIES / "order-by-claim" / "order.yaml")
    guest = dra.wait("guest")
    assert guest.containers["eater"].environment["MARGHERITA_0_TOPPINGS"] == "basil"


def test_bad_config_is_rejected(dra: Harness) -> None:
    with pytest.raises(Invalid, match='extra_topings: unknown field; did you mean "extra_toppings"'):
        dra.apply(STORIES / "bad-config" / "order.yaml")


@pytest.mark.dra_namespace(labels={"dra-kit/webhook": "off"})
def test_node_rejects_bad_config_without_webhook(dra: Harness) -> None:
    dra.apply(STORIES / "bad-config" / "order.yaml")
    guest = dra.wait("guest", message="extra_topings")
    assert guest.phase == "Pending"


def test_pod_waits_until_pizza_is_on_the_menu(dra: Harness) -> None:
    dra.apply(STORIES / "menu-changes" / "order.yaml")
    dra.wait("guest", message="cannot allocate all claims")
    dra.replace_file("menu", (STORIES / "menu-changes" / "new-menu.yaml").read_text(encoding="utf-8"))
    assert dra.wait("guest", phase="Succeeded").containers["eater"].environment["HAWAII_0_TOPPINGS"] == "ham, pineapple"


def test_claims_share_oven_with_same_temperature(dra: Harness) -> None:
    dra.apply(STORIES / "same-oven-temperature" / "lunch.yaml", STORIES / "same-oven-temperature" / "dinner.yaml")
    lunch, dinner = (dra.wait(name).containers["eater"].environment for name in ("lunch-guest", "dinner-guest"))
    assert lunch["MARGHERITA_0_OVEN_FLAME"] == dinner["PEPPERONI_0_OVEN_FLAME"]


def test_claim_with_another_oven_temperature_is_rejected(dra: Harness) -> None:
    dra.apply(STORIES / "different-oven-temperatures" / "lunch.yaml")
    dra.wait("lunch-guest", phase="Running")
    dra.apply(STORIES / "different-oven-temperatures" / "dinner.yaml")
    assert dra.wait("dinner-guest", message=f"{dra.namespace}/lunch").phase == "Pending"
