"""What is wrong with a text that is no YAML."""

from __future__ import annotations

import pytest
import yaml

from dra_kit.values.yaml_problem import yaml_problem


@pytest.mark.parametrize("loader", [yaml.SafeLoader, getattr(yaml, "CSafeLoader", yaml.SafeLoader)])
@pytest.mark.parametrize(
    ("text", "begins"),
    [("a: 1\n  b: 2\n", "line 2, column 4: "), ("kind: [", "line "), ("a: \x00", "")],
)
def test_the_place_and_the_problem_are_told_without_a_name_for_the_text(loader: type, text: str, begins: str) -> None:
    with pytest.raises(yaml.YAMLError) as caught:
        yaml.load(text, loader)  # noqa: S506 - both are safe

    told = yaml_problem(caught.value)
    assert told.startswith(begins)
    assert told != begins
    assert "string>" not in told
    assert "\n" not in told
