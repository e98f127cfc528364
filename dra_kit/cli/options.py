"""The command whose TARGET brings options of its own, and what is read of its arguments before they are known."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from dra_kit.author.driver import Driver


class RoleCommand(click.Command):
    """A command with a TARGET whose settings become further options of the command.

    A TARGET is loaded, which runs its code, only where it is named; ``--help`` says so.
    """

    def get_help_option(self, ctx: click.Context) -> click.Option | None:
        """Return ``--help``, with what it does of a TARGET."""
        option = super().get_help_option(ctx)
        if option is not None:
            option.help = "show this message; a TARGET named beside it is loaded, and its settings are shown"
        return option

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Load the TARGET first, so that its settings are known when the options are read."""
        own = super().get_params(ctx)
        driver = None if ctx.resilient_parsing else self.load(own, args)
        if driver is not None:
            from dra_kit.cli.options.driver_settings import settings_options

            ctx.meta["driver"] = driver
            ctx.meta["driver_options"] = settings_options(driver, own)
        return super().parse_args(ctx, args)

    def load(self, own: Sequence[click.Parameter], args: Sequence[str]) -> Driver[Any, Any] | None:
        """Return the driver of the TARGET; None where none is named.

        Args:
            own: the command's own options.
            args: its arguments.
        """
        target = target_of(own, args)
        if target is None:
            return None
        from dra_kit.author.target import load_driver  # what a driver is made of takes long to import

        return load_driver(target)

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the command's own options, and those of the driver that was loaded for this call."""
        return [*super().get_params(ctx), *ctx.meta.get("driver_options", [])]


def is_help(args: Sequence[str]) -> bool:
    """Return whether the arguments ask for help, which runs no code but that of a TARGET that is surely named."""
    words = args[: args.index("--")] if "--" in args else args
    return not {"-h", "--help"}.isdisjoint(words)


def target_of(params: Sequence[click.Parameter], args: Sequence[str]) -> str | None:
    """Return the TARGET among the arguments, read without knowing the author's options yet.

    What follows an unknown option may be its value, so the first argument that follows none is preferred.
    """
    return next(iter(targets_of(params, args)), None)


def targets_of(params: Sequence[click.Parameter], args: Sequence[str]) -> list[str]:
    """Return the TARGETs among the arguments: those after no unknown option; without any, the first other one.

    Of arguments that ask for help only the first count: the other one may be the value of an option.
    """
    takes_value = {opt: not option.is_flag for option in _options(params) for opt in _flags(option)}
    plain: list[str] = []
    perhaps_values: list[str] = []
    words = iter(args)
    after_unknown = False
    for word in words:
        flag, equals, _ = word.partition("=")
        if word == "--":
            plain.extend(words)
        elif not word.startswith("-"):
            (perhaps_values if after_unknown else plain).append(word)
            after_unknown = False
        elif flag not in takes_value:
            after_unknown = not equals
        elif takes_value[flag] and not equals:
            next(words, None)
    return plain or ([] if is_help(args) else perhaps_values[:1])


def _options(params: Sequence[click.Parameter]) -> Iterator[click.Option]:
    return (param for param in params if isinstance(param, click.Option))


def _flags(option: click.Option) -> list[str]:
    return [*option.opts, *option.secondary_opts]
