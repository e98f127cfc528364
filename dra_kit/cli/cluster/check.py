"""``dra-kit check``."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dra_kit.cli.cluster.source_options import cluster_options, credentials_of
from dra_kit.cli.options.common import path
from dra_kit.errors import ConfigurationError
from dra_kit.values.printable import printable_json

if TYPE_CHECKING:
    from dra_kit.kube.connection.credentials import Credentials


@click.command
@cluster_options
@click.option("--driver", help="check this driver, too: its slices, classes and sockets")
@click.option(
    "--node", "nodes", multiple=True, envvar="DRA_NODE_NAME", show_envvar=True,
    help="nodes whose kubelets are asked; may be repeated  [default: the first five]",
)  # fmt: skip
@click.option(
    "--account", type=click.Choice(["user", "node", "controller"]),
    help="what the account of the credentials is for  [default: node in a pod of the node role, else user]",
)  # fmt: skip
@click.option(
    "--kubelet-dir", default="/var/lib/kubelet", show_default=True, type=path(), envvar="DRA_KUBELET_DIR",
    show_envvar=True, help="root directory of the kubelet; where it is not here, this is no node",
)  # fmt: skip
@click.option(
    "--cdi-dir", default="/var/run/cdi", show_default=True, type=path(), envvar="DRA_CDI_DIR", show_envvar=True,
    help="where drivers write CDI files",
)  # fmt: skip
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.pass_context
def command(ctx: click.Context, /, **options: Any) -> None:
    """Check whether a cluster, and this node of it, is as DRA drivers need it.

    From anywhere with a kubeconfig: releases, rights, feature gates (by a dry run, nothing is stored), the kubelets'
    settings, whether container runtimes know CDI. On a node, as root or in a driver's pod, also the kubelet's root
    directory, sockets and containerd's configuration.

    Each line is ok, warn or FAIL; the last two say what to do. Exit code 1: a line says FAIL.

    \b
      dra-kit check --driver kitchen.pizza.example
      kubectl exec ds/pizza-node -- dra-kit check
    """  # noqa: D301 - click's mark for a paragraph that is not wrapped
    from dra_kit.operation.checks.all import Wanted, findings
    from dra_kit.operation.checks.finding import has_failed

    kubelet_dir: Path = options["kubelet_dir"]
    wanted = Wanted(
        driver=options["driver"],
        account=options["account"] or ("node" if os.environ.get("DRA_NODE_NAME") else "user"),
        nodes=options["nodes"],
        kubelet_dir=kubelet_dir if kubelet_dir.is_dir() else None,
        cdi_dir=options["cdi_dir"],
    )
    found = asyncio.run(_checked(findings, wanted, options))
    if options["output"] == "json":
        lines = [
            {"verdict": item.verdict, "what": item.what, "text": item.text, "remedy": item.remedy} for item in found
        ]
        click.echo(printable_json(json.dumps({"findings": lines}, indent=2, ensure_ascii=False)))
    else:
        for item in found:
            click.echo(str(item))
    ctx.exit(1 if has_failed(found) else 0)


async def _checked(findings: Any, wanted: Any, options: dict[str, Any]) -> Any:
    credentials: Credentials | None = None
    why = ""
    try:
        credentials = await credentials_of(options["kubeconfig"], options["context"])
    except ConfigurationError as error:
        if options["kubeconfig"] is not None or wanted.kubelet_dir is None:
            raise
        why = str(error).split(";", 1)[0]
    return await findings(wanted, credentials, why)
