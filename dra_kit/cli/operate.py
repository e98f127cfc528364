"""Commands for operators: check, status, who, support-bundle, webhook-certificate."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import click
from pydantic import BaseModel

from dra_kit import __version__
from dra_kit.admission.certificate_trust import AuthorityTrust, TrustOutcome, delete_bindings
from dra_kit.admission.certificates import SelfManagedSettings, self_made_secret
from dra_kit.admission.webhook_configuration import configuration_name
from dra_kit.author.cluster_object import ClusterObject
from dra_kit.author.driver import Driver
from dra_kit.author.settings import author_settings
from dra_kit.author.target import load_driver
from dra_kit.cli.options import (
    TargetCommand,
    cluster_options,
    complete_target,
    credentials_of,
    is_help,
    path,
    target_of,
)
from dra_kit.client.api import Client
from dra_kit.client.credentials import Credentials
from dra_kit.diagnosis.check import Account, CheckOptions, role_process, run_checks
from dra_kit.diagnosis.cluster_checks import has_failed
from dra_kit.diagnosis.status import status_problems, status_text, statuses, with_problems
from dra_kit.diagnosis.support_bundle import SupportBundle, gather, write_archive
from dra_kit.diagnosis.who import DeviceUsesOnNode, in_cluster, is_node, on_node, who_table
from dra_kit.errors import ConfigurationError
from dra_kit.kubelet.sockets import operation_links
from dra_kit.text import escape_unprintable, escape_unprintable_json


class CheckCommand(TargetCommand):
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
    "--account", type=click.Choice(["user", "node", "decommission", "controller", "webhook"]),
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
def check(ctx: click.Context, /, **options: Any) -> None:
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
    driver: Driver[Any, Any] | None = ctx.meta.get("driver")
    if driver is not None and options["driver"] not in {None, driver.name}:
        raise click.UsageError(f"TARGET is driver {driver.name}, --driver says {options['driver']}; leave one out.")
    role, kubelet_dir = role_process(), options["kubelet_dir"]
    account: Account = options["account"] or (role.role if role else "user")
    wanted = CheckOptions(
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
    found = asyncio.run(_checked(run_checks, wanted, options))
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
        or account not in {"node", "decommission"}
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


UNHEALTHY: Final = 3
"""Exit code when something is wrong with a driver, or one does not answer."""


@click.command
@click.option("--driver", help="name of the driver  [default: all of this node]")
@click.option(
    "--kubelet-dir", default="/var/lib/kubelet", show_default=True, type=path(), envvar="DRA_KUBELET_DIR",
    show_envvar=True, help="root directory of the kubelet",
)  # fmt: skip
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.pass_context
def status(ctx: click.Context, driver: str | None, kubelet_dir: Path, output: str) -> None:
    """Tell how the drivers of this node are: run it on the node as root, or in a driver's pod.

    What is prepared for whom, effects on the hardware, the last failures, whether the kubelet has registered the driver
    and why not, and slices as they are published and as they are wanted. While a driver is updated it has two
    processes: which of them the kubelet calls, and what the new one waits for.

    Exit code 0: all is well; 3: something is not, or a driver does not answer.

    \b
      kubectl exec ds/pizza-node -- dra-kit status
    """  # noqa: D301 - click's mark for a paragraph that is not wrapped
    documents, silent = asyncio.run(statuses(kubelet_dir, driver))
    if output == "json":
        answered = [with_problems(document) for document in documents]
        text = json.dumps({"drivers": answered, "notAnswering": silent}, indent=2, ensure_ascii=False)
        click.echo(escape_unprintable_json(text))
    else:
        click.echo("\n\n".join(map(status_text, documents)), nl=bool(documents))
        for line in silent:
            click.echo(escape_unprintable(line), err=True)
    ctx.exit(UNHEALTHY if silent or any(map(status_problems, documents)) else 0)


NOT_IN_USE: Final = 3
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
def who(  # noqa: PLR0917 - click passes them by name
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
    ctx.exit(0 if uses else 1 if found.is_silent else NOT_IN_USE)


async def _in_cluster(kubeconfig: Path | None, context: str | None, namespace: str | None) -> DeviceUsesOnNode:
    return await in_cluster(await credentials_of(kubeconfig, context), namespace)


@click.command
@click.argument("file", metavar="FILE.tar.gz", type=path(dir_okay=False))
@click.option("--driver", help="name of the driver  [default: the one of this node]")
@cluster_options
@click.option(
    "--kubelet-dir", default="/var/lib/kubelet", show_default=True, type=path(), envvar="DRA_KUBELET_DIR",
    show_envvar=True, help="root directory of the kubelet",
)  # fmt: skip
def support_bundle(
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
    if not file.name.endswith((".tar.gz", ".tgz")):
        raise click.UsageError(f"{file} is not an archive by its name; write for example {file.name}.tar.gz")
    bundle = asyncio.run(_gathered(driver or _only_driver(kubelet_dir), kubeconfig, context, kubelet_dir))
    files = bundle.safe_files()
    write_archive(file, files)
    click.echo(f"{len(files)} files saved in {file}")
    for line in bundle.missing:
        click.echo(escape_unprintable(f"note: {line}"), err=True)


def _only_driver(kubelet_dir: Path) -> str:
    names = [link.parent.name for link in operation_links(kubelet_dir)]
    if len(names) != 1:
        found = f"there are {', '.join(names)} here" if names else f"there is none below {kubelet_dir}"
        raise click.UsageError(f"Missing option '--driver': {found}.")
    return names[0]


async def _gathered(driver: str, kubeconfig: Path | None, context: str | None, kubelet_dir: Path) -> SupportBundle:
    credentials: Credentials | None = None
    why = ""
    try:
        credentials = await credentials_of(kubeconfig, context)
    except ConfigurationError as error:
        if kubeconfig is not None:
            raise
        why = error.problem
    return await gather(driver, credentials, kubelet_dir, why)


@click.command
@click.option("--driver", required=True, envvar="DRA_DRIVER", show_envvar=True, help="its name")
@click.option("--service", required=True, help="name of the Service in front of the webhook's pods")
@click.option(
    "-n",
    "--namespace",
    envvar="DRA_NAMESPACE",
    show_envvar=True,
    help="of Service and Secret  [default: that of the credentials]",
)
@click.option("--configuration", help="the ValidatingWebhookConfiguration  [default: opaque-config.DRIVER]")
@click.option(
    "--drop-bindings",
    metavar="NAME",
    help="at the end, delete the RoleBinding and ClusterRoleBinding of this name, which give this process its rights",
)
@cluster_options
def webhook_certificate(  # noqa: PLR0917 - click passes them by name
    driver: str,
    service: str,
    namespace: str | None,
    configuration: str | None,
    drop_bindings: str | None,
    kubeconfig: Path | None,
    context: str | None,
) -> None:
    """Make the API server trust the certificate that a webhook makes itself (--own-certificate).

    The authority in the webhook's Secret, SERVICE-self-made, is written into the driver's
    ValidatingWebhookConfiguration. Without a Secret one is made; an authority that has used up half of its life gets a
    successor, and both are trusted. The chart runs this in a Job after each install, upgrade and rollback. It may be
    repeated at any time.
    """
    trusting = configuration or configuration_name(driver)

    async def run() -> TrustOutcome:
        credentials = await credentials_of(kubeconfig, context)
        place = SelfManagedSettings(namespace=namespace or credentials.namespace or "default", service=service)
        async with Client(credentials, user_agent=f"dra-kit/{__version__} webhook-certificate") as client:
            done = await AuthorityTrust(client, place, trusting).establish()
            if drop_bindings:
                await delete_bindings(client, drop_bindings, place.namespace)
            return done

    done = asyncio.run(run())
    click.echo(f"{done.secret}: authority {'is new' if done.made else 'stays'}")
    changed = f"trusts it now: {', '.join(done.webhooks)}" if done.webhooks else "trusts it already"
    click.echo(f"ValidatingWebhookConfiguration {trusting} {changed}")
