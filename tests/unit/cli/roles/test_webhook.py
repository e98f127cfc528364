"""``dra-kit webhook`` on the command line: the configuration that it prints, and how it refuses."""

from __future__ import annotations

import base64
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import yaml

from dra_kit.admission.webhook_configuration import validating_webhook_configuration

DRIVER = """
    from collections.abc import Iterator, Sequence

    import dra_kit as dra


    class Oven(dra.DeviceProvider):
        def discover(self) -> Iterator[Sequence[dra.Device]]:
            yield []


    class Waiter(dra.Preparer):
        def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
            return dra.Prepared()


    driver = dra.Driver("dra.pizza", provider=Oven(), preparer=Waiter())
"""
URL = "https://10.0.0.7:9443"


@pytest.fixture
def target(tmp_path: Path) -> Path:
    path = tmp_path / "pizzeria.py"
    path.write_text(textwrap.dedent(DRIVER))
    return path


def webhook(*arguments: object, code: int) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("dra-kit")), "webhook", *map(str, arguments)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == code, result.stderr
    return result


def test_the_configuration_is_printed_without_certificate_or_cluster(target: Path, tmp_path: Path) -> None:
    authority = tmp_path / "ca.crt"
    authority.write_text("PEM")
    result = webhook(target, "--print-configuration", "--url", URL, "--ca-bundle", authority, code=0)
    printed = yaml.safe_load(result.stdout)
    assert printed == validating_webhook_configuration("dra.pizza", url=URL, ca_bundle=b"PEM")
    assert printed["webhooks"][0]["clientConfig"] == {
        "url": f"{URL}/validate-opaque-config",
        "caBundle": base64.b64encode(b"PEM").decode(),
    }


def test_the_configuration_is_readable_yaml(target: Path) -> None:
    output = webhook(target, "--print-configuration", "--url", URL, code=0).stdout
    assert output.startswith("apiVersion: admissionregistration.k8s.io/v1\nkind: ValidatingWebhookConfiguration\n")
    assert "&id" not in output


def test_settings_that_only_a_node_can_have_do_not_keep_it_from_starting(tmp_path: Path) -> None:
    path = tmp_path / "pizzeria.py"
    settings = "class Settings(BaseModel):\n    oven: FilePath\n\n\n"
    text = (
        textwrap.dedent(DRIVER)
        .replace("class Oven(", f"{settings}class Oven(")
        .replace("Waiter())", "Waiter(), settings=Settings)")
    )
    path.write_text(f"from pydantic import BaseModel, FilePath\n{text}")
    result = webhook(path, "--cert", tmp_path / "tls.crt", "--key", tmp_path / "tls.key", "--oven", "/nowhere", code=2)
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
    result = webhook(target, *arguments, code=2)
    assert result.stdout == ""
    assert problem in result.stderr
    assert "Traceback" not in result.stderr
