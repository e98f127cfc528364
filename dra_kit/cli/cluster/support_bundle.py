"""``dra-kit support-bundle``."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dra_kit.cli.cluster.source_options import cluster_options, credentials_of
from dra_kit.cli.options.common import path
from dra_kit.errors import ConfigurationError
from dra_kit.text import escape_unprintable

if TYPE_CHECKING:
    from dra_kit.client.credentials import Credentials
    from dra_kit.operation.bundle.contents import Bundle


@click.command
@click.argument("file", metavar="FILE.tar.gz", type=path(dir_okay=False))
@click.option("--driver", help="name of the driver  [default: the one of this node]")
@cluster_options
@click.option(
    "--kubelet-dir", default="/var/lib/kubelet", show_default=True, type=path(), envvar="DRA_KUBELET_DIR",
    show_envvar=True, help="root directory of the kubelet",
)  # fmt: skip
def command(
    file: Path, driver: str | None, kubeconfig: Path | None, context: str | None, kubelet_dir: Path
) -> None:  # fmt: skip
    """Gather what somebody elsewhere needs to help with a driver, without secrets.

    From a laptop with a kubeconfig: checks, slices, classes, claims, nodes, Events, and the driver's pods with their
    logs. On a node, as root or in the driver's pod, also status, who has what and metrics.

    Left out are Secrets, ConfigMaps, environments, commands, opaque configuration, what drivers write into a claim's
    status, and kubeconfigs; logs are searched for such values. Look into it before you send it: what the driver's own
    code has logged, nobody else knows.

    \b
      dra-kit support-bundle pizza.tar.gz --driver kitchen.pizza.example
    """  # noqa: D301 - click's mark for a paragraph that is not wrapped
    from dra_kit.operation.bundle.archive import write_archive

    if not file.name.endswith((".tar.gz", ".tgz")):
        raise click.UsageError(f"{file} is no archive by its name; write for example {file.name}.tar.gz")
    bundle = asyncio.run(_gathered(driver or _only_driver(kubelet_dir), kubeconfig, context, kubelet_dir))
    files = bundle.safe_files()
    write_archive(file, files)
    click.echo(f"{len(files)} files saved in {file}")
    for line in bundle.missing:
        click.echo(escape_unprintable(f"note: {line}"), err=True)


def _only_driver(kubelet_dir: Path) -> str:
    from dra_kit.kubelet.sockets import operation_links

    names = [link.parent.name for link in operation_links(kubelet_dir)]
    if len(names) != 1:
        found = f"there are {', '.join(names)} here" if names else f"there is none below {kubelet_dir}"
        raise click.UsageError(f"Missing option '--driver': {found}.")
    return names[0]


async def _gathered(driver: str, kubeconfig: Path | None, context: str | None, kubelet_dir: Path) -> Bundle:
    from dra_kit.operation.bundle.contents import gather

    credentials: Credentials | None = None
    why = ""
    try:
        credentials = await credentials_of(kubeconfig, context)
    except ConfigurationError as error:
        if kubeconfig is not None:
            raise
        why = error.problem
    return await gather(driver, credentials, kubelet_dir, why)
