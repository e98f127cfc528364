from __future__ import annotations

from pathlib import Path

import pytest

from dra_kit.errors import ConfigurationError
from dra_kit.sandbox.stories.story import Story, find_stories, load_story

POD = """\
apiVersion: v1
kind: Pod
metadata:
  name: guest
spec:
  containers: []
"""


def write(directory: Path, expect: str, **manifests: str) -> Path:
    directory.mkdir(exist_ok=True)
    (directory / "expect.yaml").write_text(expect)
    for name, text in manifests.items():
        (directory / f"{name}.yaml").write_text(text)
    return directory


def names(story: Story) -> list[list[str]]:
    return [[manifest.file for manifest in step.manifests] for step in story.steps]


def test_story_without_steps_applies_everything_at_once(tmp_path: Path) -> None:
    story = load_story(write(tmp_path / "lunch", "pods: {guest: {phase: Running}}", b=POD, a=POD))

    assert story.name == "lunch"
    assert names(story) == [["a.yaml", "b.yaml"]]
    assert story.steps[0].expectation is not None
    assert story.steps[0].expectation.pods["guest"].phase == "Running"
    assert story.leftovers == ()


def test_first_step_applies_manifests_that_no_step_names(tmp_path: Path) -> None:
    expect = """
steps:
  - pods: {guest: {phase: Pending}}
  - edit: {menu: new-menu.yaml}
    health: {pizza-0: {burnt: black, cold: null}}
  - apply: [late.yaml]
    delete: [Pod/guest]
"""
    directory = write(tmp_path / "lunch", expect, order=POD, late=POD)
    (directory / "new-menu.yaml").write_text("pizzas: []")

    story = load_story(directory)

    assert names(story) == [["order.yaml"], [], ["late.yaml"]]
    assert story.steps[1].edits == {"menu": "pizzas: []"}
    assert story.steps[1].health == {"pizza-0": {"burnt": "black", "cold": None}}
    assert story.steps[2].deletes == ("Pod/guest",)


def test_environment_value_is_a_text_or_a_pattern(tmp_path: Path) -> None:
    expect = """
pods:
  guest:
    phase: Running
    message: one text
    containers:
      eater:
        environment: {A: "1", B: null, C: {pattern: "[0-9]+"}, D: {same_as: guest/eater/A}, E: {}}
        mounts: {/menu: {same_as: guest/eater//menu}}
"""
    expectation = load_story(write(tmp_path, expect)).steps[0].expectation
    assert expectation is not None
    container = expectation.pods["guest"].containers["eater"]

    values = {name: value.model_dump(exclude_defaults=True) for name, value in container.environment.items()}
    assert values == {
        "A": {"equals": "1"},
        "B": {"absent": True},
        "C": {"pattern": "[0-9]+"},
        "D": {"same_as": "guest/eater/A"},
        "E": {"present": True},
    }


def test_stories_are_found_by_their_expectations(tmp_path: Path) -> None:
    write(tmp_path / "b", "pods: {}")
    write(tmp_path / "a", "pods: {}")
    (tmp_path / "notes").mkdir()

    assert [path.name for path in find_stories(tmp_path)] == ["a", "b"]


@pytest.mark.parametrize(
    ("expect", "text"),
    [
        ("pods: {guest: {phase: Runing}}", 'pods.guest.phase: "Runing" is not supported; did you mean "Running"?'),
        (
            "pods: {guest: {phase: Running, exit_code: 0}}",
            "pods.guest.exit_code: unknown key 'exit_code'; valid keys: phase, message, interfaces, containers",
        ),
        (
            "pods: {guest: {phase: Running, containers: {eater: {environment: {SLICES: 8}}}}}",
            "pods.guest.containers.eater.environment.SLICES: must be a text (numbers and booleans in quotes)",
        ),
        (
            "pods: {guest: {phase: Running, containers: {eater: {environment: {SLICES: {pattern: '('}}}}}}",
            "'(' is not a valid regular expression",
        ),
        (
            "pods: {guest: {pase: Running}}",
            "pods.guest.pase: unknown key 'pase'; did you mean \"phase\"? valid keys: phase, message, ",
        ),
        (
            "steps: [{pods: {guest: {phase: Running, containers: {steps: {outputs: [a]}}}}}]",
            'did you mean "output"? valid keys: exit_code, environment, device_nodes, mounts, cpuset, memory_nodes, ',
        ),
        (
            "step: []",
            "step: unknown key 'step'; did you mean \"steps\"? valid keys: pods, claims, devices, gone, ",
        ),
        ("steps: [{health: {pizza-0: burnt}}]", 'steps[0].health.pizza-0: must be an object, not "burnt"'),
        (
            "pods: {guest: {phase: Running, containers: {eater: {health: {lunch: ill}}}}}",
            '"ill" is not supported; use one of "Healthy", "Unhealthy", "Unknown"',
        ),
        (
            "steps: [{kill: {aftr: EFFECT_APPLIED}}]",
            "steps[0].kill.aftr: unknown key 'aftr'; did you mean \"after\"? valid keys: after, restart",
        ),
        (
            "steps: [{kill: {after: EFFECT_APPLYED}}]",
            "steps[0].kill.after: unknown step 'EFFECT_APPLYED'; did you mean \"EFFECT_APPLIED\"? valid steps:",
        ),
        ("steps: [{kill: {after: PREPARED, restart: false}}]", "steps[0].kill: after and restart: false cannot"),
        ("steps: [{kill: {}, restart: {}}]", "steps[0]: restart and kill are given: write a step for each"),
        ("steps: [{kil: {}}]", "steps[0].kil: unknown key 'kil'; did you mean \"kill\"?"),
        ("steps: [{kill: true}]", "steps[0].kill: must be an object, not true"),
        ("steps: [{gone: [guest]}]", "steps[0].gone[0]: 'guest' must be <kind>/<name>"),
        (
            "steps: [{devices: {pizza-0: {attribute: {}}}}]",
            'did you mean "attributes"? valid keys: attributes, capacity',
        ),
        ("steps: [{delete: [guest]}]", "steps[0].delete[0]: 'guest' must be <kind>/<name>"),
        ("pods: {guest: {phase: Running}}\nsteps: [{}]", "give either steps, or pods and claims"),
        ("namespace: {}", "there is nothing to expect"),
        ("- a", 'the file: must be an object, not ["a"]'),
        ("pods: {", "cannot be read: line 1"),
        ("steps: [{apply: [nothing.yaml]}]", "nothing.yaml cannot be read: No such file or directory"),
        ("steps: [{edit: {menu: nothing.yaml}}]", "nothing.yaml cannot be read: No such file or directory"),
    ],
)
def test_mistake_is_reported_with_file_and_position(tmp_path: Path, expect: str, text: str) -> None:
    directory = write(tmp_path, expect)

    with pytest.raises(ConfigurationError) as caught:
        load_story(directory)

    assert text in str(caught.value)
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_manifest_that_no_step_applies_is_rejected(tmp_path: Path) -> None:
    directory = write(tmp_path, "steps: [{apply: [a.yaml]}]", a=POD, forgotten=POD)

    with pytest.raises(ConfigurationError, match=r"no step applies forgotten\.yaml"):
        load_story(directory)


@pytest.mark.parametrize(
    ("manifest", "text"),
    [
        (
            "kind: Job\nmetadata: {name: x}",
            "document 1 lacks apiVersion, which must be a string",
        ),
        (
            "apiVersion: v1\nkind: ''\nmetadata: {name: x}",
            "document 1 lacks kind, which must be a string",
        ),
        ("kind: Pod\napiVersion: v1", "(Pod) lacks metadata.name"),
        ("--- 1\n--- 2", "document 1 is not an object"),
        ("a: [", "cannot be read: line 1"),
    ],
)
def test_invalid_manifest_is_reported_by_name(tmp_path: Path, manifest: str, text: str) -> None:
    directory = write(tmp_path, "pods: {a: {phase: Running}}", order=manifest)

    with pytest.raises(ConfigurationError) as caught:
        load_story(directory)

    assert text in str(caught.value)
    assert "order.yaml" in str(caught.value)


def test_driver_actions_are_read_and_the_release_is_found_next_to_the_story(tmp_path: Path) -> None:
    expect = """
steps:
  - kill: {after: EFFECT_APPLIED}
    devices: {pizza-0: {attributes: {hot: true, slices: 8}}, pizza-1: null}
    gone: [Pod/guest]
  - upgrade: {target: "../next.py:driver"}
  - upgrade: {target: next.module}
"""
    (tmp_path / "next.py").touch()
    story = load_story(write(tmp_path / "lunch", expect))

    first, second, third = story.steps
    assert story.killed == {""}
    assert first.actions is not None
    assert first.actions.kill is not None
    assert first.actions.kill.after == "EFFECT_APPLIED"
    assert first.expectation is not None
    assert first.expectation.gone == ("Pod/guest",)
    assert first.expectation.devices["pizza-1"] is None
    assert second.actions is not None
    assert second.actions.upgrade is not None
    assert second.actions.upgrade.target == f"{tmp_path}/next.py:driver"
    assert third.actions is not None
    assert third.actions.upgrade is not None
    assert third.actions.upgrade.target == "next.module"


def test_additional_drivers_are_found_next_to_the_story(tmp_path: Path) -> None:
    expect = """
targets: [./nic.py, "shop.py:wine", leds.yaml, wine.module]
steps:
  - kill: {}
    driver: dra.wine
  - edit: {shelf: new.yaml}
    driver: dra.wine
  - edit: {menu: new.yaml}
"""
    directory = write(tmp_path / "lunch", expect)
    for name in ("nic.py", "shop.py", "leds.yaml", "new.yaml"):
        (directory / name).touch()

    story = load_story(directory)

    places = [f"{directory}/nic.py", f"{directory}/shop.py:wine", f"{directory}/leds.yaml", "wine.module"]
    assert list(story.targets) == places
    assert story.killed == {"dra.wine"}
    assert story.edited == {"dra.wine.shelf", "menu"}
    assert story.steps[0].manifests == ()


def test_missing_release_of_an_upgrade_is_rejected(tmp_path: Path) -> None:
    problem = r"expect\.yaml: upgrade to \./next\.py: /.*/lunch/next\.py does not exist; name a file"
    with pytest.raises(ConfigurationError, match=problem):
        load_story(write(tmp_path / "lunch", "steps: [{upgrade: {target: ./next.py}}]"))


def test_missing_additional_driver_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"targets nic\.py: /.*/lunch/nic\.py does not exist; name a file"):
        load_story(write(tmp_path / "lunch", "targets: [nic.py]\npods: {guest: {phase: Running}}"))
