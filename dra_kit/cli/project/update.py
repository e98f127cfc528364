"""``dra-kit update``."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import click

from dra_kit.errors import ConfigurationError


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False, exists=True), default=Path())
@click.option("--force", is_flag=True, help="also when the project has changes that are not committed")
@click.pass_context
def command(ctx: click.Context, folder: Path, force: bool) -> None:
    """Bring the project in FOLDER, which `dra-kit new` made, to the template of this release.

    What you changed stays. Where the template changed the same lines, both are kept between git's marks, and the exit
    code is 1.

    Only files in FOLDER are written or removed. Links are kept, and not followed. No code of the project is run, and no
    program that its git configuration names.
    """
    from dra_kit.scaffold.answers import read_answers
    from dra_kit.scaffold.git import uncommitted
    from dra_kit.scaffold.rendering import installed_version, render
    from dra_kit.scaffold.share import template
    from dra_kit.scaffold.updating import update

    answers, made_by = read_answers(folder)
    name = folder.resolve().name
    if not force and (lines := list(islice(uncommitted(folder), 3))):
        raise ConfigurationError(
            f"{name} has changes that are not committed ({'; '.join(map(str.strip, lines))}), which could not be "
            "told from the template's; commit them, or use --force"
        )
    version = installed_version()
    changes = update(folder, render(template(), answers, version), project=f"dra-kit {made_by}")
    for change in changes:
        click.echo(f"{change.outcome:<9} {change.path}{f' ({change.why})' if change.why else ''}")
    conflicts = sum(change.outcome == "conflict" for change in changes)
    if conflicts:
        files = "a file has conflicts" if conflicts == 1 else f"{conflicts} files have conflicts"
        click.echo(f"{files}: look for <<<<<<<", err=True)
        ctx.exit(1)
    click.echo(
        f"{name} is as the template of dra-kit {version} makes it, with your changes" if changes else "nothing to do"
    )
