"""The pages on the roles say what the chart grants and what the commands take."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from dra_kit.cli.app import load_command

ROOT = Path(__file__).resolve().parents[3]
PAGES = {"node": "roles.md", "controller": "role-controller.md", "webhook": "role-webhook.md"}


def page(role: str) -> str:
    return (ROOT / "docs" / "reference" / PAGES[role]).read_text(encoding="utf-8")


@pytest.mark.parametrize("role", ["node", "controller"])
def test_the_rights_are_those_of_the_chart(role: str) -> None:
    template = (ROOT / "charts" / "dra-driver" / "templates" / f"{role}-rbac.yaml").read_text(encoding="utf-8")
    chart = template.partition("\nrules:\n")[2].partition("\n---")[0]
    # at the end of a driver it is less
    chart = re.sub(r"(?ms)^  \{\{- if \S+decommission.*?^  \{\{- else \}\}\n(.*?)^  \{\{- end \}\}\n", r"\1", chart)
    chart = re.sub(r"(?ms)^  \{\{- (?:if|with) .*?^  \{\{- end \}\}(?:\n|$)", "", chart)  # what only some drivers need
    chart = re.sub(r"\{\{.*?\}\}", "dra.pizza", chart)
    blocks = re.findall(r"```yaml\n(.*?)```", page(role), re.DOTALL)
    roles: list[dict[str, Any]] = [item for text in blocks for item in yaml.safe_load_all(text)]
    [told] = [item["rules"] for item in roles if item["metadata"]["name"] == f"pizza-{role}"]
    assert told == yaml.safe_load(chart)


@pytest.mark.parametrize("role", PAGES)
def test_the_flags_are_those_of_the_command(role: str) -> None:
    command: click.Command = load_command(role)
    taken = {flag: param.envvar or "" for param in command.params for flag in param.opts if flag.startswith("--")}
    told = dict(re.findall(r"^\| `(--[a-z-]+)` \| `?([A-Z_]*)`? ?\|", page(role), re.MULTILINE))
    assert told
    assert told.items() <= taken.items()
    assert taken.keys() - told.keys() <= {
        *(
            "--driver",
            "--kubeconfig",
            "--probe-address",
            "--log-format",
            "--log-level",
            "--print-configuration",
            "--url",
            "--ca-bundle",
        ),
    }
