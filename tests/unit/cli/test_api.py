"""``dra-kit api`` shows the reference of the public names in the terminal."""

from __future__ import annotations

import re

import pytest
from click.testing import CliRunner

import dra_kit
import dra_kit.cel
import dra_kit.testing
from dra_kit.cli.app import cli
from dra_kit.text import escape_unprintable

MODULES = (dra_kit, dra_kit.cel, dra_kit.testing)
NAMES = [f"{module.__name__}.{name}".removeprefix("dra_kit.") for module in MODULES for name in module.__all__]


def told(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(cli, ["api", *arguments])
    assert result.exit_code == code, result.output
    return result.output


def test_a_model_is_shown_with_its_fields_and_errors_and_without_pydantics_methods() -> None:
    text = told("Prepared")

    assert text.startswith("class dra_kit.Prepared\n")
    assert "\nArguments, passed by name\n" in text
    assert "\n    env: Mapping[str, str] = {}\n        environment variables" in text
    assert "\nRaises\n    InvalidPrepared\n        naming the object, the field, the value and the rule" in text
    assert "model_" not in text
    assert "pydantic" not in text


def test_a_class_to_subclass_is_shown_with_its_methods() -> None:
    text = told("Preparer")

    assert text.startswith("class dra_kit.Preparer[ConfigT, AdvertisedT_contra, HardwareT, AuthorSettingsT]\n")
    assert "\n    prepare(self, claim: Claim, device: AllocatedDevice" in text
    assert "dra-kit api Preparer.prepare" in text


def test_a_method_is_shown_with_its_whole_text() -> None:
    text = told("testing.Harness.wait")

    assert text.startswith("dra_kit.testing.Harness.wait(self, pod: str, *, phase: ")
    assert "\n    timeout: float | None = None\n        seconds to wait" in text
    assert "\nRaises\n    AssertionError\n" in text


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("Prepared.env", "dra_kit.Prepared.env: Mapping[str, str]"),
        ("Context.node", "dra_kit.Context.node: NodeInfo"),
        ("Driver.rescan_every", "dra_kit.Driver.rescan_every: float | None"),
        ("testing.Harness.namespace", "dra_kit.testing.Harness.namespace: str"),
    ],
)
def test_arguments_and_attributes_are_shown_alone(name: str, title: str) -> None:
    first, blank, *text = told(name).splitlines()

    assert (first, blank) == (title, "")
    assert text


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("DeviceNode.path", "dra_kit.DeviceNode.path: str"),
        ("Claim.namespace", "dra_kit.Claim.namespace: str"),
        ("testing.PodFacts.phase", "dra_kit.testing.PodFacts.phase: str"),
    ],
)
def test_arguments_without_a_text_are_shown_alone(name: str, title: str) -> None:
    assert told(name).strip() == title


def test_a_protocol_has_no_arguments() -> None:
    assert "Arguments" not in told("testing.Cluster")


def test_a_class_with_a_constructor_is_shown_with_the_types_and_defaults_of_its_arguments() -> None:
    text = told("Driver")

    assert "\n    name: str\n        the driver's name" in text
    assert "\n    invalid_devices: Literal['refuse', 'drop'] = 'refuse'\n" in text


@pytest.mark.parametrize("name", ["testing.unit", "dra_kit.testing.unit", "dra.testing.unit"])
def test_names_of_other_modules_and_with_the_module_in_front(name: str) -> None:
    assert told(name).startswith("dra_kit.testing.unit(tested: ")


def test_without_a_name_all_are_listed_with_their_first_sentence() -> None:
    text = told()

    assert "  Prepared  " in re.sub(" +", "  ", text)
    assert [name for name in NAMES if f"\n  {name} " not in text] == []


@pytest.mark.parametrize("name", NAMES)
def test_every_public_name_has_a_text_without_markup(name: str) -> None:
    text = told(name)

    assert len(text.splitlines()) > 2
    assert not re.search(r":(class|meth|func|data|attr|mod|exc|ref|doc):|``|::$", text, re.MULTILINE)
    assert max(map(len, text.splitlines())) <= 120 or re.search(r"\S{60,}", text)
    assert text == escape_unprintable(text, keep="\n")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("Prepard", 'did you mean "Prepared"?'),
        ("Preparer.prepar", 'did you mean "prepare"?'),
        ("testing.unitt", 'did you mean "testing.unit"?'),
        ("nothing_like_it", "dra-kit api lists all names"),
    ],
)
def test_an_unknown_name_is_reported(name: str, hint: str) -> None:
    text = told(name, code=2)

    assert text.startswith(f"error: {name} is not a public name")
    assert hint in text
