"""``dra-kit sandbox list``."""

from __future__ import annotations

import click

from dra_kit.cli.sandbox.down import how_to_use


@click.command("list")
def list_command() -> None:
    """Tell which sandboxes of yours run in the background, the oldest first, and how to use and to end each.

    Exit code 0, also when there is none.
    """
    from dra_kit.sandbox.run.detached import running

    found = running()
    for sandbox in found:
        click.echo(f"{sandbox.title}, process {sandbox.pid}")
        for line in how_to_use(sandbox):
            click.echo(f"  {line}")
    if not found:
        click.echo("no sandbox runs in the background; dra-kit sandbox TARGET --detach starts one", err=True)
