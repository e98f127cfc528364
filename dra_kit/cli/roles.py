"""``dra-kit webhook``."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from pydantic import BaseModel

from dra_kit.author.driver import Driver
from dra_kit.author.settings import author_settings
from dra_kit.cli.options.common import check_name, common, complete_target, expected_driver, path
from dra_kit.cli.options.role_command import RoleCommand
from dra_kit.errors import ConfigurationError
from dra_kit.process import logging as process_logging

if TYPE_CHECKING:
    from dra_kit.admission.certificates import SelfManagedSettings

logger: logging.Logger = logging.getLogger(__name__)


@click.command(cls=RoleCommand)
@click.argument("target", shell_complete=complete_target)
@click.option(
    "--cert",
    type=path(),
    envvar="DRA_WEBHOOK_CERT",
    show_envvar=True,
    help="PEM file with the server's certificate chain; read again when it is replaced",
)
@click.option("--key", type=path(), envvar="DRA_WEBHOOK_KEY", show_envvar=True, help="PEM file with its key")
@click.option(
    "--own-certificate",
    metavar="SERVICE",
    envvar="DRA_WEBHOOK_OWN_CERTIFICATE",
    show_envvar=True,
    help="in place of --cert and --key: make a certificate for this Service of the webhook's namespace, store it in "
    "the Secret SERVICE-self-made, and renew it; `dra-kit webhook-certificate` makes the API server trust it",
)
@click.option(
    "--namespace",
    envvar="DRA_NAMESPACE",
    show_envvar=True,
    help="with --own-certificate: of this Service and its Secret  [default: that of the credentials]",
)
@click.option(
    "--host", default="", envvar="DRA_WEBHOOK_HOST", show_envvar=True, help="address to listen on  [default: all]"
)
@click.option(
    "--port",
    default=9443,
    show_default=True,
    type=click.IntRange(0, 65535),
    envvar="DRA_WEBHOOK_PORT",
    show_envvar=True,
    help="port to listen on; 0 takes a free one and logs it",
)
@click.option(
    "--print-configuration",
    is_flag=True,
    help="print the ValidatingWebhookConfiguration as YAML, and end; needs --url",
)
@click.option("--url", help="with --print-configuration: where the API server reaches the webhook, https://host:port")
@click.option(
    "--ca-bundle",
    type=path(),
    help="with --print-configuration: PEM file of the authority of the webhook's certificate",
)
@expected_driver
@common
@click.pass_context
def command(  # noqa: PLR0917 - click passes them by name
    ctx: click.Context,
    target: str,
    cert: Path | None,
    key: Path | None,
    own_certificate: str | None,
    namespace: str | None,
    host: str,
    port: int,
    print_configuration: bool,
    url: str | None,
    ca_bundle: Path | None,
    expected: str | None,
    kubeconfig: Path | None,
    probe_address: str,
    log_format: Any,
    log_level: str,
) -> None:
    """Run TARGET's webhook: refuse opaque configuration that the driver would refuse, when it is applied.

    TARGET is module:attr, ./file.py, a folder with a pyproject.toml, or a file of globs (.yaml).
    """
    del target
    driver: Driver[Any, Any] = ctx.meta["driver"]
    check_name(driver, expected)
    if print_configuration:
        if not url:
            raise click.UsageError("Missing option '--url': where the API server reaches the webhook.")
        click.echo(_configuration(driver.name, url, ca_bundle), nl=False)
        return
    if own_certificate and (cert or key):
        raise click.UsageError("--own-certificate does not go together with --cert and --key: it makes them.")
    if cert is None and not own_certificate:
        raise click.UsageError(
            "Missing option '--cert' (DRA_WEBHOOK_CERT): PEM file with the certificate chain; or --own-certificate."
        )
    if key is None and not own_certificate:
        raise click.UsageError("Missing option '--key' (DRA_WEBHOOK_KEY): PEM file with the certificate's key.")
    process_logging.configure(log_format, log_level.upper())
    from dra_kit.admission.agent import WebhookSettings, run_webhook

    settings = WebhookSettings(
        cert=cert,
        key=key,
        own=_own(own_certificate, namespace) if own_certificate else None,
        host=host,
        port=port,
        kubeconfig=kubeconfig,
        probe_address=probe_address,
        author=_author_settings(driver, ctx.meta.get("driver_settings", {})),
    )
    # threads review configs beside the event loop, which waits for its turn at each packet; Python's own is 5 ms
    sys.setswitchinterval(0.0005)
    ctx.exit(asyncio.run(run_webhook(driver, settings)))


def _own(service: str, namespace: str | None) -> SelfManagedSettings:
    from dra_kit.admission.certificates import SelfManagedSettings

    return SelfManagedSettings(namespace=namespace or "", service=service)


def _author_settings(driver: Driver[Any, Any], values: Mapping[str, object]) -> BaseModel | None:
    """Return the author's settings; None where they do not fit: they may name what only nodes have."""
    try:
        return author_settings(driver, values)
    except ConfigurationError as error:
        logger.warning("configs are checked without settings", extra={"error": str(error), "code": error.code})
        return None


def _configuration(driver_name: str, url: str, ca_bundle: Path | None) -> str:
    import yaml

    from dra_kit.admission.webhook_configuration import validating_webhook_configuration

    try:
        authority = ca_bundle.read_bytes() if ca_bundle else None
    except OSError as error:
        raise ConfigurationError(f"--ca-bundle {ca_bundle} cannot be read: {error.strerror}; correct it") from None
    configuration = validating_webhook_configuration(driver_name, url=url, ca_bundle=authority)
    # the three webhooks share parts, which YAML would write as anchors and aliases
    text: str = yaml.safe_dump(json.loads(json.dumps(configuration)), sort_keys=False)
    return text
