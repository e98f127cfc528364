"""The group of commands: the table of commands, completion, and how errors are printed."""

from __future__ import annotations

import errno
import importlib
import logging
import os
import platform
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import click
from click.shell_completion import CompletionItem, get_completion_class

from dra_kit import __version__
from dra_kit.errors import ConfigurationError, DraKitError
from dra_kit.kubernetes.release import NEWEST, OLDEST
from dra_kit.process.logging import log_as_json
from dra_kit.text import did_you_mean, escape_unprintable

logger: logging.Logger = logging.getLogger(__name__)
INTERRUPTED: Final = 130
"""Exit code of a command that Ctrl-C interrupted, as in shells (128 + SIGINT)."""
CUT_OFF: Final = 128 + signal.SIGPIPE
"""Exit code when the reader of the output has closed it, as in shells."""
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
VERSION: Final = f"dra-kit {__version__} (Kubernetes {OLDEST} to {NEWEST}, Python {platform.python_version()})"
_ARGUMENTS: Final = "dra_kit.arguments"
_FIRST: Final = "To start, run: dra-kit new NAME. For help on a command, run: dra-kit COMMAND --help."
COMMANDS = {
    "advise": "find an order of a driver's devices that leaves more room for large requests",
    "api": "show the reference of a name of dra_kit: arguments, types, defaults, methods, errors",
    "chart": "print the folder of the helm chart, or write the chart of one driver",
    "check": "check whether a cluster and its nodes meet the requirements of DRA drivers",
    "completion": "print the shell script that completes commands, options and files",
    "conformance": "judge a DRA driver in any language by its sockets, files and objects",
    "controller": "run the controller role: Events on claims, and cluster-wide devices",
    "decommission": "remove a driver from a node: release its claims and undo its effects",
    "dev": "run a driver in a one-process cluster, and restart it whenever its files change",
    "docs": "list the pages of the documentation, or show one",
    "drain": "show which claims still use devices of a driver, before you remove it",
    "explain": "explain why a claim or pod gets devices, or why not",
    "lint": "check manifests: structure, limits, CEL, and common mistakes",
    "new": "create a driver project: code, tests, image, chart values",
    "node": "run the node role: serve the kubelet, publish devices",
    "policy": "write a ValidatingAdmissionPolicy that checks opaque configuration, in place of the webhook",
    "replay": "play the recording of a sandbox or a cluster, and show its state at any moment",
    "sandbox": "run a driver in a one-process cluster, and show how pods get its devices",
    "sbom": "print an SBOM (CycloneDX) of the installed packages",
    "snapshot": "save the objects that explain reads, or record how they change, to analyze them elsewhere",
    "status": "show the state of the drivers on this node",
    "support-bundle": "collect the data that is needed to diagnose a driver, without secrets",
    "template": "write the ResourceSlices of a node that does not exist yet, for autoscalers",
    "update": "update a project that `dra-kit new` created to the template of this release",
    "webhook": "run the webhook role: check opaque configuration",
    "webhook-certificate": "make the API server trust a webhook's self-made certificate",
    "who": "show who uses which device: hardware, claim, pod, container",
}
"""The first line of each command's help, by the command's name."""
_MODULES: Final = {
    "api": ("api",),
    "app": ("completion",),
    "conformance": ("conformance",),
    "dev": ("dev",),
    "drain": ("drain",),
    "explain": ("explain",),
    "lint": ("advise", "lint"),
    "operate": ("check", "status", "support-bundle", "webhook-certificate", "who"),
    "project": ("chart", "docs", "new", "policy", "sbom", "template", "update"),
    "recordings": ("replay", "snapshot"),
    "roles": ("controller", "decommission", "node", "webhook"),
    "sandbox": ("sandbox",),
}
"""The module of each command; its function has the command's name."""
_MODULE_OF: Final = {name: module for module, names in _MODULES.items() for name in names}


def load_command(name: str) -> click.Command:
    """Import the module of a command, and return the command."""
    module = importlib.import_module(f"dra_kit.cli.{_MODULE_OF[name]}")
    command: click.Command = getattr(module, name.replace("-", "_"))
    return command


class LazyGroup(click.Group):
    """Loads a command's module when the command is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return all commands, by name."""
        del ctx
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of that name."""
        if cmd_name not in COMMANDS:
            return super().get_command(ctx, cmd_name)
        return load_command(cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the arguments begin with; fail with similar names if it is unknown."""
        if args[0] == "help":
            if not args[1:]:
                click.echo(ctx.get_help())
                ctx.exit()
            args = [*args[1:], "--help"]
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            hint = did_you_mean(name, COMMANDS)
            if not hint and (Path(name).is_dir() or Path(name).suffix == ".py"):
                hint = f"; to run a driver, use: dra-kit sandbox {name}"
            ctx.fail(f"No such command {name!r}{hint or '; the commands are ' + ', '.join(sorted(COMMANDS))}")
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return completions of a word, without importing the commands."""
        names = [CompletionItem(name, help=COMMANDS[name]) for name in sorted(COMMANDS) if name.startswith(incomplete)]
        return [*names, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands, without importing them."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl(sorted(COMMANDS.items()))

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Store the arguments, which determine how errors are printed."""
        ctx.meta[_ARGUMENTS] = list(args)
        return super().parse_args(ctx, args)

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program; a full disk on which its output is written is one line on stderr, without a traceback."""
        try:
            return super().main(*args, **kwargs)
        except OSError as error:
            if error.errno not in _FULL:
                raise
            place = f"{error.filename}" if error.filename else "output"
            click.echo(f"error: {place} cannot be written: {error.strerror}; free space, or write elsewhere", err=True)
            with suppress(OSError):  # Python writes the rest when it exits
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(1)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; an error that the user can fix is one line on stderr, without a traceback."""
        if _logs_json(ctx.meta[_ARGUMENTS]):
            return self._invoke_with_log(ctx)
        try:
            return super().invoke(ctx)
        except DraKitError as error:
            click.echo(f"error: {escape_unprintable(_one_line(error))} [{error.code}]", err=True)
            ctx.exit(_exit_code(error))
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            ctx.exit(INTERRUPTED)

    def _invoke_with_log(self, ctx: click.Context) -> Any:
        """Run a role that logs JSON: errors that terminate it and Python's warnings are lines of that log."""
        with log_as_json():
            try:
                return super().invoke(ctx)
            except DraKitError as error:
                logger.error("process ends", extra={"error": _one_line(error), "code": error.code})
                ctx.exit(_exit_code(error))
            except click.ClickException as error:
                logger.error("process ends", extra={"error": error.format_message(), "code": "usage"})
                ctx.exit(error.exit_code)
            except KeyboardInterrupt:
                logger.warning("interrupted")
                ctx.exit(INTERRUPTED)
            except (click.exceptions.Exit, click.Abort):
                raise
            except Exception:
                logger.exception("process ends")
                ctx.exit(1)


def _one_line(error: DraKitError) -> str:
    return " ".join(str(error).split())  # an author's exception may have many lines


def _exit_code(error: DraKitError) -> int:
    return 2 if isinstance(error, ConfigurationError) else 1


def _logs_json(args: Sequence[str]) -> bool:
    """Return whether the arguments run a role that logs JSON."""
    if not args or _MODULE_OF.get(args[0]) != "roles":
        return False
    return (value_of("--log-format", args) or os.environ.get("DRA_LOG_FORMAT")) == "json"


def value_of(option: str, args: Sequence[str]) -> str | None:
    """Return the last value of an option among the arguments; the author's options need not be known."""
    return next(reversed(values_of(option, args)), None)


def values_of(option: str, args: Sequence[str]) -> list[str]:
    """Return all values of an option among the arguments; the author's options need not be known."""
    return [value for _, value in ordered_values((option,), args)]


def ordered_values(options: Sequence[str], args: Sequence[str]) -> list[tuple[str, str]]:
    """Return all values of several options among the arguments, each with its option, in their order."""
    found: list[tuple[str, str | None]] = []
    for word, following in pairwise([*args, None]):
        if word is None or word == "--":
            break
        flag, equals, value = word.partition("=")
        if flag in options:
            found.append((flag, value if equals else following))
    return [(flag, value) for flag, value in found if value is not None]


def flags_of(param: click.Parameter) -> list[str]:
    """Return all flags of an option, such as ``--view`` and ``--no-view``."""
    return [*param.opts, *param.secondary_opts]


@click.command(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]}, epilog=_FIRST)
@click.version_option(__version__, message=VERSION, help="show the version, and the supported Kubernetes releases")
def cli() -> None:
    """Write and run Kubernetes DRA drivers in Python."""


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the shell script that completes dra-kit's commands, options and files.

    \b
    bash, in ~/.bashrc:                       eval "$(dra-kit completion bash)"
    zsh, in ~/.zshrc, after compinit:         eval "$(dra-kit completion zsh)"
    fish, in ~/.config/fish/config.fish:      dra-kit completion fish | source
    """  # noqa: D301 - click requires the character itself
    completer = get_completion_class(shell)
    assert completer is not None  # noqa: S101 - click has all three
    # click derives the variable's name from the program's
    click.echo(completer(cli, {}, "dra-kit", "_DRA_KIT_COMPLETE").source())
