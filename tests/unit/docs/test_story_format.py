"""docs/reference/story-*.md tell every key of the models, their examples are stories, and the schema is theirs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from dra_kit.cli.app import cli
from dra_kit.node.failpoints import Failpoint
from dra_kit.sandbox.stories.model import StoryFile
from dra_kit.sandbox.stories.story import load_story

PAGES = sorted((Path(__file__).resolve().parents[3] / "docs" / "reference").glob("story-*.md"))
TEXTS = {page.name: page.read_text(encoding="utf-8") for page in PAGES}
TEXT = "\n".join(TEXTS.values())
SCHEMA: dict[str, Any] = StoryFile.model_json_schema()
TABLES = {
    "The file": SCHEMA,
    "A step": SCHEMA["$defs"]["StepFile"],
    **{
        heading: SCHEMA["$defs"][name]
        for heading, name in {
            "Kill": "Kill", "Upgrade": "Upgrade", "Reboot": "Reboot", "Pod": "PodExpectation",
            "Container": "ContainerExpectation", "Claim": "ClaimExpectation", "Device": "DeviceExpectation",
            "Node": "StoryNode", "Namespace": "Namespace",
        }.items()
    },
}  # fmt: skip
LINKS = {name: heading for heading, name in (("Pod", "PodExpectation"), ("Claim", "ClaimExpectation"))}
LINKS |= {"ContainerExpectation": "Container", "DeviceExpectation": "Device", "StepFile": "A step", "StoryNode": "Node"}


def page_of(heading: str) -> str:
    """The page that has a section."""
    (found,) = [name for name, text in TEXTS.items() if re.search(rf"^## {heading}$", text, re.MULTILINE)]
    return found


def typed(schema: Mapping[str, Any], page: str) -> str:
    """A type in words, with links of a page."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        heading = LINKS.get(name, name)
        if name == "EmptyMapping":
            return "`{}`"
        target = page_of(heading).replace(page, "")
        return f"[{heading}]({target}#{heading.lower().replace(' ', '-')})"
    if "anyOf" in schema:
        kinds = [typed(item, page) for item in schema["anyOf"]]
        return " or ".join(kind for kind in kinds if kind != "null" or schema.get("default", 0) is not None)
    if "enum" in schema:
        return "name of a [step](#steps-of-the-node-role)" if len(schema["enum"]) > 9 else ", ".join(schema["enum"])
    match schema.get("type"):
        case "array":
            return f"list of {typed(schema['items'], page)}"
        case "object" if schema.get("additionalProperties"):
            return f"mapping of {typed(schema['additionalProperties'], page)}"
        case "object":
            return " ".join(f"`{{{key}: …}}`" for key in schema["properties"]) or "`{}`"
        case kind:
            return {"string": "text", "integer": "number", "boolean": "true, false"}.get(str(kind), str(kind))


def rows(schema: Mapping[str, Any], page: str) -> Iterator[str]:
    """A part of the file as a table."""
    yield "| key | type | default | meaning |"
    yield "|---|---|---|---|"
    for name, field in schema["properties"].items():
        default = "required" if name in schema.get("required", ()) else _default(field.get("default"))
        yield f"| `{name}` | {typed(field, page)} | {default} | {field['description']} |"


def _default(value: object) -> str:
    return "" if value in (None, [], {}, {"labels": {}}) else f"`{json.dumps(value)}`"


@pytest.mark.parametrize("heading", TABLES)
def test_page_documents_every_key(heading: str) -> None:
    page = page_of(heading)
    table = "\n".join(rows(TABLES[heading], page))
    section = re.search(rf"^## {heading}$(.*?)(?=^## |\Z)", TEXTS[page], re.MULTILINE | re.DOTALL)
    assert section is not None
    assert table in section[1], f"update the table of {heading}:\n{table}"


def test_page_documents_every_failpoint() -> None:
    table = [line for line in TEXT.splitlines() if re.match(r"\| `[A-Z_]+` \|", line)]
    assert table == [f"| `{step.name}` | {step.value} |" for step in Failpoint], "update the table of steps"


@pytest.mark.parametrize("number", range(len(re.findall(r"```yaml\n", TEXT))))
def test_every_example_is_a_story(tmp_path: Path, number: int) -> None:
    block = re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)[number]
    for path in re.findall(r"[\w-]+\.(?:yaml|py)", block):
        (tmp_path / path).write_text("")
    (tmp_path / "expect.yaml").write_text(block)
    load_story(tmp_path)
    assert not set(yaml.safe_load(block)) - set(SCHEMA["properties"])


def test_the_schema_is_printed_for_editors() -> None:
    result = CliRunner().invoke(cli, ["sandbox", "schema"])
    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout)
    assert printed["properties"].keys() == SCHEMA["properties"].keys()
    assert {"type": "null"} in printed["$defs"]["ContainerExpectation"]["properties"]["environment"][
        "additionalProperties"
    ]["anyOf"]
