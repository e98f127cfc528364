"""``dra-kit policy`` on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from dra_kit.cli.app import cli

PIZZA = Path(__file__).resolve().parents[4] / "examples" / "pizza-driver"


@pytest.mark.parametrize("action", ["Deny", "Warn"])
def test_policy_and_binding_are_written_for_kubectl_apply(action: str) -> None:
    result = CliRunner().invoke(cli, ["policy", str(PIZZA), "--action", action])
    assert result.exit_code == 0, result.output
    policy, binding = yaml.safe_load_all(result.output)
    assert policy["kind"] == "ValidatingAdmissionPolicy"
    assert binding["spec"] == {"policyName": policy["metadata"]["name"], "validationActions": [action]}
    assert result.output.startswith("# Made by dra-kit policy from the config models of driver kitchen.pizza.example")
