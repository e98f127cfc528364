"""``dra-kit who``."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from dra_kit.cli.cluster.source_options import cluster_options, credentials_of
from dra_kit.cli.options.common import path
from dra_kit.text import escape_unprintable, escape_unprintable_json

if TYPE_CHECKING:
    from dra_kit.operation.who.on_node import Found

NOBODY: Final = 3
"""Exit code when nothing that was asked for is in use."""


@click.command
@click.argument("wanted", metavar="[NODE|POD|CLAIM|DEVICE]...", nargs=-1)
@cluster_options
@click.option("-n", "--namespace", help="claims of this namespace only")
@click.option(
    "--source", type=click.Choice(["auto", "node", "cluster"]), default="auto", show_default=True,
    help="whom to ask: this node's drivers and kubelet, or the API server; auto asks the node where there is something "
    "to ask and no cluster is named",
)  # fmt: skip
@click.option(
    "--kubelet-dir", default="/var/lib/kubelet", show_default=True, type=path(), envvar="DRA_KUBELET_DIR",
    show_envvar=True, help="root directory of the kubelet",
)  # fmt: skip
@click.option(
    "--cdi-dir", "cdi_dirs", multiple=True, type=path(), envvar="DRA_CDI_DIR", show_envvar=True,
    help="where CDI files are; may be repeated  [default: /var/run/cdi, /etc/cdi]",
)  # fmt: skip
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.pass_context
def command(  # noqa: PLR0917 - click passes them by name
    ctx: click.Context,
    wanted: tuple[str, ...],
    kubeconfig: Path | None,
    context: str | None,
    namespace: str | None,
    source: str,
    kubelet_dir: Path,
    cdi_dirs: tuple[Path, ...],
    output: str,
) -> None:
    """Tell who has which device: driver, pool, device, share, what the hardware calls it, claim, pod, container.

    Without a name all devices in use are listed. A name is that of a node, a pod, a claim, a device or the hardware
    itself (GPU-8f3c…); pods and claims may be namespace/name, devices pool/name.

    On a node the drivers of dra-kit, the kubelet and the CDI files are asked, without the API server (root); drivers of
    dra-kit tell hardware ids. Elsewhere claims and pods are read, for drivers in any language.

    Exit code 3: nothing of that is in use; 1: that is not known, since a driver of this node does not answer.

    \b
      dra-kit who
      dra-kit who gpu-node-7
      dra-kit who team-a/trainer-0
      kubectl exec ds/pizza-node -- dra-kit who GPU-8f3c2c4e-…
    """  # noqa: D301 - click's mark for a paragraph that is not wrapped
    from dra_kit.operation.who.on_node import is_node, on_node
    from dra_kit.operation.who.text import who_table

    here = source == "node" or (source == "auto" and not (kubeconfig or context) and is_node(kubelet_dir))
    if here:
        found = asyncio.run(on_node(kubelet_dir, cdi_dirs or (Path("/var/run/cdi"), Path("/etc/cdi"))))
    else:
        found = asyncio.run(_in_cluster(kubeconfig, context, namespace))
    uses = [
        use
        for use in found.uses
        if (not wanted or any(map(use.fits, wanted))) and (namespace is None or use.namespace == namespace)
    ]
    if output == "json":
        document = {"devices": [use.to_json() for use in uses], "notKnown": list(found.gaps)}
        click.echo(escape_unprintable_json(json.dumps(document, indent=2, ensure_ascii=False)))
    else:
        for gap in found.gaps:
            click.echo(escape_unprintable(f"note: {gap}"), err=True)
        if uses:
            click.echo(who_table(uses))
        else:
            of = f" of {', '.join(wanted)}" if wanted else ""
            if found.is_silent:
                why = "is not known, since a driver does not answer; dra-kit status tells more"
                click.echo(escape_unprintable(f"whether a device{of} is in use {why}"), err=True)
                ctx.exit(1)
            hint = "; what the hardware calls a device is known on its node alone" if wanted else ""
            where = " on this node; --source cluster asks the API server" if here else hint
            click.echo(escape_unprintable(f"no device{of} is in use{where}"), err=True)
    ctx.exit(0 if uses else 1 if found.is_silent else NOBODY)


async def _in_cluster(kubeconfig: Path | None, context: str | None, namespace: str | None) -> Found:
    from dra_kit.operation.who.live import in_cluster

    return await in_cluster(await credentials_of(kubeconfig, context), namespace)
