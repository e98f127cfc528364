"""``dra-kit snapshot``."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dra_kit.cli.cluster.source_options import credentials_of, source_options
from dra_kit.cli.options.common import path
from dra_kit.text import escape_unprintable

if TYPE_CHECKING:
    from dra_kit.explain.cluster.objects import Objects


@click.command
@click.argument("destination", metavar="PATH", type=path())
@source_options
@click.option("--alpha", is_flag=True, help="note that the cluster's alpha features of resource.k8s.io are on")
@click.option("--all-events", is_flag=True, help="save Events of all namespaces, not only of the one that is meant")
def command(
    destination: Path,
    kubeconfig: Path | None,
    context: str | None,
    namespace: str | None,
    *,
    alpha: bool,
    all_events: bool,
) -> None:
    """Save what 'dra-kit explain --from PATH' needs, so that somebody else can look at it.

    PATH is a directory, or an archive if it ends in .tar.gz or .tgz. Saved are ResourceSlices, DeviceClasses,
    DeviceTaintRules, claims and their templates; of nodes labels, taints and what they can allocate; of pods what
    they ask for, their conditions, and what the kubelet says of containers that do not run, neither commands nor
    environments nor images; Events of the namespace, of all with --all-events. No Secrets, no ConfigMaps. Opaque
    configuration of claims and classes is saved as it is. Nobody but you can read the files.

    \b
      dra-kit snapshot cluster.tar.gz
      dra-kit explain claim lunch --from cluster.tar.gz
    """  # noqa: D301 - click's mark for a paragraph that is not wrapped
    from dra_kit.snapshot.files import check_destination, save
    from dra_kit.snapshot.live import Scope, read_live

    async def read() -> Objects:
        credentials = await credentials_of(kubeconfig, context)
        of = namespace or credentials.namespace or "default"
        return await read_live(credentials, Scope(of, all_events=all_events), alpha=alpha)

    check_destination(destination)
    objects = asyncio.run(read())
    count = save(objects, destination)
    click.echo(f"{count} objects saved in {destination}")
    for gap in objects.gaps:
        click.echo(escape_unprintable(f"{gap.text}: {gap.consequence}"), err=True)
