"""The group of commands, and how an error of the user's is told."""

from __future__ import annotations

import importlib
from typing import Any, Final

import click

from dra_kit.errors import ConfigurationError, DraKitError
from dra_kit.values.nearest import did_you_mean
from dra_kit.values.printable import printable

INTERRUPTED: Final = 130
"""Exit code of a command that Ctrl-C ended, as shells give it (128 + SIGINT)."""

COMMANDS = {
    "chart": "print where the helm chart is",
    "controller": "run the controller role: Events on the life of claims",
    "explain": "tell why a claim or pod gets devices, or why not",
    "lint": "check manifests: structure, limits, CEL, and common mistakes",
    "new": "make a driver's project: code, tests, image, chart values",
    "node": "run the node role: serve the kubelet, publish devices",
    "sandbox": "run a driver in a cluster of one process, and watch pods get its devices",
    "snapshot": "save what explain needs of a cluster, to be looked at elsewhere",
    "update": "bring a project that `dra-kit new` made to this release's template",
    "webhook": "run the webhook role: check opaque configuration",
}


class LazyGroup(click.Group):
    """Loads a command's module when the command is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All commands, by name."""
        del ctx
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name."""
        if cmd_name not in COMMANDS:
            return super().get_command(ctx, cmd_name)
        module = importlib.import_module(f"dra_kit.cli.{cmd_name}")
        command: click.Command = module.command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that the arguments begin with; of one that there is not, which may be meant."""
        hint = did_you_mean(args[0], COMMANDS) if args[0] not in COMMANDS else ""
        if hint:
            ctx.fail(f"No such command {args[0]!r}{hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of commands, without importing them."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl(sorted(COMMANDS.items()))

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; what the user can mend is one line on stderr, without a traceback."""
        try:
            return super().invoke(ctx)
        except DraKitError as error:
            text = " ".join(str(error).split())  # an author's exception may have many lines
            click.echo(f"error: {printable(text)} [{error.code}]", err=True)
            ctx.exit(2 if isinstance(error, ConfigurationError) else 1)
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            ctx.exit(INTERRUPTED)


@click.command(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="dra-kit")
def cli() -> None:
    """Write and run Kubernetes DRA drivers in Python."""
