"""docs/lint.md lists the rules as they are, and its examples are what is printed."""

from __future__ import annotations

import re
from pathlib import Path

from dra_kit.lint.report import as_text
from dra_kit.lint.rules import GROUPS, RULES
from tests.unit.lint.texts import claim, device_class, found, pod

PAGE = (Path(__file__).parents[3] / "docs" / "lint.md").read_text(encoding="utf-8")


def test_the_page_lists_each_rule_in_its_group() -> None:
    listed = {
        group: re.findall(r"^\| `(.+?)` \| (\w+) \| (.+) \|$", text, re.MULTILINE)
        for group, text in re.findall(r"^### (.+?)\n(.*?)(?=^### |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    }
    expected = {
        group: [(rule.id, rule.level, rule.about.replace("|", "&#124;")) for rule in rules]
        for group, rules in GROUPS.items()
    }
    assert listed == expected


def test_no_two_rules_have_one_name() -> None:
    assert len(RULES) == sum(len(rules) for rules in GROUPS.values())
    assert [name for name in RULES if not re.fullmatch(r"[a-z]+(-[a-z]+)*", name)] == []


EXPRESSION = 'device.driver == "gpu.example.com" &&\n  device.capacity["gpu.example.com"].memory >= 80'
FLAT = claim().replace("      exactly:\n        deviceClassName", "      deviceClassName")
ASKING = f"{claim()}---\n{pod('[{name: gpu, resourceClaimName: lunch}]', '[{name: gpu, request: gpus}]')}"


def test_the_examples_of_the_page_are_what_is_printed() -> None:
    texts = {"gpu.yaml": device_class(EXPRESSION), "claim.yaml": FLAT, "pod.yaml": ASKING}
    findings = [finding for name, text in texts.items() for finding in found(text, name=name)]
    shown = as_text(findings, files=3, objects=4)
    assert f"```\n{shown}\n```" in PAGE
