"""``dra-kit check``."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click
from pydantic import BaseModel

from dra_kit.author.cluster_object import ClusterObject
from dra_kit.author.driver import Driver
from dra_kit.author.settings import author_settings
from dra_kit.author.target import load_driver
from dra_kit.cli.cluster.source_options import cluster_options, credentials_of
from dra_kit.cli.options.common import complete_target, path
from dra_kit.cli.options.role_command import RoleCommand, is_help, target_of
from dra_kit.errors import ConfigurationError
from dra_kit.operation.checks.role_process import role_process
from dra_kit.text import escape_unprintable_json

if TYPE_CHECKING:
    from dra_kit.client.credentials import Credentials
    from dra_kit.operation.checks.needed import Account


class CheckCommand(RoleCommand):
    """Its TARGET may be left out; in the pod of a role it is that of the role."""

    def load(self, own: Sequence[click.Parameter], args: Sequence[str]) -> Driver[Any, Any] | None:
        """Return the driver of TARGET."""
        target = target_of(own, args) or ("" if is_help(args) else getattr(role_process(), "target", ""))
        return load_driver(target) if target else None


@click.command(cls=CheckCommand)
@click.argument("target", required=False, shell_complete=complete_target)
@cluster_options
@click.option("--driver", help="check this driver, too: its slices, classes and sockets  [default: that of TARGET]")
@click.option(
    "--node", "nodes", multiple=True, envvar="DRA_NODE_NAME", show_envvar=True,
    help="nodes whose kubelets are asked; may be repeated  [default: the first five]",
)  # fmt: skip
@click.option(
    "--account", type=click.Choice(["user", "node", "undertaker", "controller", "webhook"]),
    help="what the account of the credentials is for  [default: the role in whose pod this is, else user]",
)  # fmt: skip
@click.option(
    "--own-certificate", envvar="DRA_WEBHOOK_OWN_CERTIFICATE", show_envvar=True, default="",
    help="of the webhook: the Service for which it makes its certificate itself",
)  # fmt: skip
@click.option(
    "--kubelet-dir", default="/var/lib/kubelet", show_default=True, type=path(), envvar="DRA_KUBELET_DIR",
    show_envvar=True, help="root directory of the kubelet; where it is not here, this is no node",
)  # fmt: skip
@click.option(
    "--cdi-dir", default="/var/run/cdi", show_default=True, type=path(), envvar="DRA_CDI_DIR", show_envvar=True,
    help="where drivers write CDI files",
)  # fmt: skip
@click.option(
    "--cri-socket", type=path(), envvar="DRA_CRI_SOCKET", show_envvar=True,
    help="of the container runtime  [default: that of containerd, CRI-O or k3s, where there is one]",
)  # fmt: skip
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.pass_context
def command(ctx: click.Context, /, **options: Any) -> None:
    """Check whether a cluster, and this node of it, is as DRA drivers need it.

    From anywhere with a kubeconfig: releases, rights, feature gates (by a dry run, nothing is stored), the kubelets'
    settings, whether container runtimes know CDI. With TARGET, what the driver's code needs beside that: pools of no
    node, binding, taint rules, policy, objects. On a node, as root or in a driver's pod, also the kubelet's root
    directory, sockets, and what the container runtime says of CDI.

    Each line is ok, warn or FAIL; the last two say what to do. Exit code 1: a line says FAIL.

    \b
      dra-kit check --driver kitchen.pizza.example
      kubectl exec ds/pizza-node -- dra-kit check
      kubectl exec deploy/pizza-controller -- dra-kit check
    """  # noqa: D301 - click's mark for a paragraph that is not wrapped
    from dra_kit.admission.certificates import self_made_secret
    from dra_kit.operation.checks.all import Wanted, findings
    from dra_kit.operation.checks.finding import has_failed

    driver: Driver[Any, Any] | None = ctx.meta.get("driver")
    if driver is not None and options["driver"] not in {None, driver.name}:
        raise click.UsageError(f"TARGET is driver {driver.name}, --driver says {options['driver']}; leave one out.")
    role, kubelet_dir = role_process(), options["kubelet_dir"]
    account: Account = options["account"] or (role.role if role else "user")
    wanted = Wanted(
        driver=driver.name if driver is not None else options["driver"],
        code=driver,
        settings=_settings(ctx, driver, account),
        account=account,
        certificate=self_made_secret(service) if (service := options["own_certificate"]) else "",
        nodes=options["nodes"],
        kubelet_dir=kubelet_dir if kubelet_dir.is_dir() else None,
        cdi_dir=options["cdi_dir"],
        cri_socket=options["cri_socket"],
    )
    found = asyncio.run(_checked(findings, wanted, options))
    if options["output"] == "json":
        lines = [
            {"verdict": item.verdict, "what": item.what, "text": item.text, "remedy": item.remedy} for item in found
        ]
        click.echo(escape_unprintable_json(json.dumps({"findings": lines}, indent=2, ensure_ascii=False)))
    else:
        for item in found:
            click.echo(str(item))
    ctx.exit(1 if has_failed(found) else 0)


def _settings(ctx: click.Context, driver: Driver[Any, Any] | None, account: str) -> BaseModel | None:
    """Return the driver's own settings where its rights follow from them: in which namespaces its objects are."""
    if (
        driver is None
        or account not in {"node", "undertaker"}
        or not any(issubclass(item, ClusterObject) for item in driver.effects.values())
    ):
        return None
    return author_settings(driver, ctx.meta.get("driver_settings", {}))


async def _checked(findings: Any, wanted: Any, options: dict[str, Any]) -> Any:
    credentials: Credentials | None = None
    why = ""
    try:
        credentials = await credentials_of(options["kubeconfig"], options["context"])
    except ConfigurationError as error:
        if options["kubeconfig"] is not None or wanted.kubelet_dir is None:
            raise
        why = error.problem
    return await findings(wanted, credentials, why)
