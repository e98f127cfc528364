"""``dra-kit completion``."""

from __future__ import annotations

from typing import Final

import click
from click.shell_completion import get_completion_class

from dra_kit.cli.app import cli

_PROGRAM: Final = "dra-kit"
_VARIABLE: Final = "_DRA_KIT_COMPLETE"
"""By which the script asks this program; click makes the name of that of the program."""


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print the script that makes a shell complete dra-kit's commands, options and files.

    \b
    bash, in ~/.bashrc:                       eval "$(dra-kit completion bash)"
    zsh, in ~/.zshrc, behind compinit:        eval "$(dra-kit completion zsh)"
    fish, in ~/.config/fish/config.fish:      dra-kit completion fish | source
    """  # noqa: D301 - click wants the character itself
    made = get_completion_class(shell)
    assert made is not None  # noqa: S101 - click has all three
    click.echo(made(cli, {}, _PROGRAM, _VARIABLE).source())
