"""``dra-kit webhook`` on the command line: the configuration that it prints, and how it refuses."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
import yaml

from dra_kit.admission.review import validating_webhook_configuration
from tests.unit.cli.roles.command import dra_kit

URL = "https://10.0.0.7:9443"


def test_the_configuration_is_printed_without_certificate_or_cluster(target: Path, tmp_path: Path) -> None:
    authority = tmp_path / "ca.crt"
    authority.write_text("PEM")
    result = dra_kit("webhook", target, "--print-configuration", "--url", URL, "--ca-bundle", authority, code=0)
    printed = yaml.safe_load(result.stdout)
    assert printed == validating_webhook_configuration("dra.pizza", url=URL, ca_bundle=b"PEM")
    assert printed["webhooks"][0]["clientConfig"] == {
        "url": f"{URL}/validate-opaque-config",
        "caBundle": base64.b64encode(b"PEM").decode(),
    }


def test_the_configuration_is_readable_yaml(target: Path) -> None:
    output = dra_kit("webhook", target, "--print-configuration", "--url", URL, code=0).stdout
    assert output.startswith("apiVersion: admissionregistration.k8s.io/v1\nkind: ValidatingWebhookConfiguration\n")
    assert "&id" not in output


def test_settings_that_only_a_node_can_have_do_not_keep_it_from_starting(target: Path, tmp_path: Path) -> None:
    text = target.read_text().replace("slices: int = 8", "oven: FilePath")
    target.write_text(text.replace("import BaseModel", "import BaseModel, FilePath"))
    certificate = ("--cert", tmp_path / "tls.crt", "--key", tmp_path / "tls.key")
    result = dra_kit("webhook", target, *certificate, "--oven", "/nowhere", code=2)
    assert "configs are checked without settings" in result.stderr
    assert "--oven (DRIVER_OVEN)" in result.stderr
    assert "tls.crt" in result.stderr, "it went on"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ([], "Missing option '--cert' (DRA_WEBHOOK_CERT)"),
        (["--cert", "tls.crt"], "Missing option '--key' (DRA_WEBHOOK_KEY)"),
        (["--print-configuration"], "Missing option '--url'"),
        (["--print-configuration", "--url", "http://x"], "webhook URL 'http://x' is not of the form https://host:port"),
        (["--print-configuration", "--url", URL, "--ca-bundle", "/nowhere.crt"], "--ca-bundle /nowhere.crt cannot be"),
    ],
)
def test_missing_or_invalid_options_are_reported(target: Path, arguments: list[str], problem: str) -> None:
    result = dra_kit("webhook", target, *arguments, code=2)
    assert result.stdout == ""
    assert problem in result.stderr
