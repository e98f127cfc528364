"""``dra-kit chart``."""

from __future__ import annotations

import click


@click.command()
def command() -> None:
    """Print the folder of the helm chart that comes with this release: helm install NAME "$(dra-kit chart)" ..."""
    from dra_kit.scaffold.share import chart

    click.echo(chart())
