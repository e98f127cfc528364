"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from dra_kit.errors import ConfigurationError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from dra_kit.author.driver import Driver

F = TypeVar("F", bound=Callable[..., Any])


def path(**kwargs: Any) -> click.Path:
    """Return a type for a path as pathlib's Path."""
    return click.Path(path_type=Path, **kwargs)


def complete_target(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete a TARGET to a file or folder."""
    from click.shell_completion import CompletionItem  # for a shell that completes, and for nothing else

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
