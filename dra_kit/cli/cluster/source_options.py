"""The options that select a cluster, for commands that read one as kubectl does."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from dra_kit.cli.options.common import path
from dra_kit.errors import ConfigurationError, SandboxError

if TYPE_CHECKING:
    from dra_kit.client.credentials import Credentials
    from dra_kit.sandbox.run.detached import DetachedSandbox

F = TypeVar("F", bound=Callable[..., Any])


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
    from dra_kit.client.credentials import load_credentials

    try:
        return await load_credentials(kubeconfig, context)
    except ConfigurationError as error:
        if kubeconfig is not None:
            raise
        ways = [*_sandboxes(), "dra-kit explain --from PATH looks at saved objects"]
        raise ConfigurationError("; ".join((str(error), *ways))) from None


def _sandboxes() -> list[str]:
    """Return a hint at sandboxes in the background, else at how to start one."""
    from dra_kit.sandbox.run.detached import running

    found: list[DetachedSandbox] = []
    with contextlib.suppress(OSError, SandboxError):  # there may be no place where they could have left word
        found = running()
    named = [f"--kubeconfig {one.kubeconfig} is the sandbox of {one.title}" for one in found]
    return named or ["dra-kit sandbox TARGET --detach starts a cluster, whose kubeconfig --kubeconfig takes"]
