"""The options that say which cluster is meant, for commands that read one as kubectl does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from dra_kit.cli.options import path

F = TypeVar("F", bound=Callable[..., Any])


def source_options(function: F) -> F:
    """``--kubeconfig``, ``--context`` and ``--namespace``."""
    for option in (
        click.option("-n", "--namespace", help="default: that of the context"),
        click.option("--context", help="context of the kubeconfig  [default: its current one]"),
        click.option("--kubeconfig", type=path(), envvar="DRA_KUBECONFIG", show_envvar=True,
                     help="default: $KUBECONFIG, else ~/.kube/config"),
    ):  # fmt: skip
        function = option(function)
    return function
