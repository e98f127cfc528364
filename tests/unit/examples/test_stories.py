"""The stories of the example: complete, well-formed, and about this driver."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import dra_kit as dra
from dra_kit.sandbox.stories.manifests import load_manifests
from dra_kit.sandbox.stories.story import Story, find_stories, load_story
from tests.unit.examples.kitchen import PROJECT, STORIES, PizzaConfig, bake, driver, read_menu

NAMES = {
    "order-by-claim",
    "order-by-template",
    "shared-by-two-containers",
    "shared-by-two-pods",
    "two-pizzas-in-one-pod",
    "config-in-claim",
    "config-in-class",
    "config-in-both",
    "same-oven-temperature",
    "different-oven-temperatures",
    "no-pizza-matches",
    "bad-config",
    "admin-access",
    "menu-changes",
}


def parameters(story: Story) -> Iterator[Any]:
    for step in story.steps:
        for manifest in step.manifests:
            spec = manifest.body["spec"]
            spec = spec.get("spec", spec)
            for entry in spec.get("devices", spec).get("config", []):
                yield entry["opaque"]["parameters"]


def test_every_story_is_there() -> None:
    assert {path.name for path in find_stories(STORIES)} == NAMES


@pytest.mark.parametrize("name", sorted(NAMES))
def test_a_story_can_be_read_and_is_explained(name: str) -> None:
    story = load_story(STORIES / name)

    assert any(step.expectation and step.expectation.pods for step in story.steps)
    assert story.leftovers == ()
    assert (STORIES / name / "README.md").read_text().startswith("# ")


@pytest.mark.parametrize("name", sorted(NAMES - {"bad-config"}))
def test_the_driver_takes_the_config_of_a_story(name: str) -> None:
    for config in parameters(load_story(STORIES / name)):
        assert isinstance(driver.configs.decode(config), PizzaConfig)


def test_the_driver_refuses_the_bad_config() -> None:
    (config,) = parameters(load_story(STORIES / "bad-config"))

    with pytest.raises(dra.InvalidConfig, match=r"extra_topings: unknown field; did you mean \"extra_toppings\"\?"):
        driver.configs.decode(config)


def test_the_new_menu_adds_one_pizza() -> None:
    (edit,) = [step.edits["menu"] for step in load_story(STORIES / "menu-changes").steps if step.edits]
    before = bake(read_menu((PROJECT / "menu.yaml").read_text()))

    after = bake(read_menu(edit))

    assert after[: len(before)] == before
    assert [device.name for device in after[len(before) :]] == ["hawaii-0"]


def test_the_classes_are_those_of_the_talk() -> None:
    classes = {manifest.name: manifest.body["spec"] for manifest in load_manifests(PROJECT / "deviceclasses.yaml")}

    assert set(classes) == {"pizza", "pizza-vegetarian"}
    vegetarian = " ".join(selector["cel"]["expression"] for selector in classes["pizza-vegetarian"]["selectors"])
    for word in ("mozzarella", "mushrooms", "extraCheeseAvailable", driver.name):
        assert word in vegetarian
