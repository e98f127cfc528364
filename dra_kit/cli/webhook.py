"""``dra-kit webhook``."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import click

from dra_kit.cli.options import RoleCommand, common, path
from dra_kit.process import logging as process_logging


@click.command(cls=RoleCommand)
@click.argument("target")
@click.option(
    "--cert",
    required=True,
    type=path(),
    envvar="DRA_WEBHOOK_CERT",
    show_envvar=True,
    help="PEM file with the server's certificate chain; read again when it is replaced",
)
@click.option(
    "--key", required=True, type=path(), envvar="DRA_WEBHOOK_KEY", show_envvar=True, help="PEM file with its key"
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
@common
@click.pass_context
def command(  # noqa: PLR0917 - click passes them by name
    ctx: click.Context,
    target: str,
    cert: Path,
    key: Path,
    host: str,
    port: int,
    kubeconfig: Path | None,
    log_format: Any,
    log_level: str,
) -> None:
    """Run TARGET's webhook: refuse opaque configuration that the driver would refuse, when it is applied.

    TARGET is module:attr, ./file.py or a folder with a pyproject.toml.
    """
    del target
    process_logging.configure(log_format, log_level.upper())
    from dra_kit.webhook.agent import WebhookSettings, run_webhook

    settings = WebhookSettings(cert=cert, key=key, host=host, port=port, kubeconfig=kubeconfig)
    ctx.exit(asyncio.run(run_webhook(ctx.meta["driver"], settings)))
