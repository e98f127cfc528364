"""Options that several commands share, and commands that load a TARGET."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

from dra_kit.author.target import load_driver
from dra_kit.errors import ConfigurationError, SandboxError

if TYPE_CHECKING:
    from dra_kit.author.driver import Driver
    from dra_kit.client.credentials import Credentials
    from dra_kit.sandbox.run.detached import DetachedSandbox


class TargetCommand(click.Command):
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
            from dra_kit.cli.driver_settings import settings_options

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


F = TypeVar("F", bound=Callable[..., Any])


def path(**kwargs: Any) -> click.Path:
    """Return a type for a path as pathlib's Path."""
    return click.Path(path_type=Path, **kwargs)


def complete_target(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete a TARGET to a file or folder."""
    del ctx, param
    return [CompletionItem(incomplete, type="file")]


def expected_driver(function: F) -> F:
    """Add ``--driver``, the name that the driver of TARGET must have."""
    return click.option(
        "--driver", "expected", envvar="DRA_DRIVER", show_envvar=True,
        help="name that the driver of TARGET must have: rights and directories are made for it  [default: any]",
    )(function)  # fmt: skip


def check_name(driver: Driver[Any, Any], expected: str | None) -> None:
    """Check that the driver has the name for which its account and its directories were made.

    Args:
        driver: of TARGET.
        expected: the name; None for any.

    Raises:
        ConfigurationError: it has another name.
    """
    if expected is not None and driver.name != expected:
        raise ConfigurationError(
            f"TARGET is driver {driver.name}, and --driver (DRA_DRIVER; driverName in the chart's values) says "
            f"{expected}; set driverName to {driver.name}, or correct TARGET"
        )


def common(function: F) -> F:
    """Add ``--kubeconfig``, ``--probe-address`` and the options of logging."""
    for option in (
        click.option("--log-level", default="info", show_default=True, envvar="DRA_LOG_LEVEL", show_envvar=True,
                     type=click.Choice(["debug", "info", "warning", "error"]), help="least level that is logged"),
        click.option("--log-format", default="text", show_default=True, envvar="DRA_LOG_FORMAT", show_envvar=True,
                     type=click.Choice(["text", "json"]), help="lines for people or for machines"),
        click.option("--probe-address", default="", envvar="DRA_PROBE_ADDRESS", show_envvar=True,
                     help="serve /healthz and /readyz there, for example :8081  [default: nowhere]"),
        click.option("--kubeconfig", type=path(), envvar="DRA_KUBECONFIG", show_envvar=True,
                     help="default: $KUBECONFIG, in a pod its service account, else ~/.kube/config"),
    ):  # fmt: skip
        function = option(function)
    return function


def source_options(function: F) -> F:
    """Add ``--kubeconfig``, ``--context`` and ``--namespace``."""
    return cluster_options(click.option("-n", "--namespace", help="default: that of the context")(function))


def cluster_options(function: F) -> F:
    """Add ``--kubeconfig`` and ``--context``."""
    for option in (
        click.option("--context", help="context of the kubeconfig  [default: its current one]"),
        click.option("--kubeconfig", type=path(), envvar="DRA_KUBECONFIG", show_envvar=True,
                     help="default: $KUBECONFIG, else ~/.kube/config"),
    ):  # fmt: skip
        function = option(function)
    return function


async def credentials_of(kubeconfig: Path | None, context: str | None) -> Credentials:
    """Return the credentials by the options.

    Args:
        kubeconfig: None for the usual places.
        context: of the kubeconfig; None for its current one.

    Raises:
        ConfigurationError: there are none that can be used; says which sandboxes run.
    """
    from dra_kit.client.credentials import load_credentials  # a command says what it loads before it loads this

    try:
        return await load_credentials(kubeconfig, context)
    except ConfigurationError as error:
        if kubeconfig is not None:
            raise
        ways = [*_sandboxes(), "dra-kit explain --from PATH looks at saved objects"]
        raise ConfigurationError("; ".join((str(error), *ways))) from None


def _sandboxes() -> list[str]:
    """Return a hint at sandboxes in the background, else at how to start one."""
    from dra_kit.sandbox.run.detached import running_in_background  # the whole sandbox, which no role needs

    found: list[DetachedSandbox] = []
    with contextlib.suppress(OSError, SandboxError):  # there may be no place where they could have left word
        found = running_in_background()
    named = [f"--kubeconfig {one.kubeconfig} is the sandbox of {one.title}" for one in found]
    return named or ["dra-kit sandbox TARGET --detach starts a cluster, whose kubeconfig --kubeconfig takes"]
