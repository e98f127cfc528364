"""Commands for operators: check, status, who, support-bundle, webhook-certificate."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click
from msgspec import to_builtins
from pydantic import BaseModel

from dra_kit import __version__
from dra_kit.admission.certificates import (
    AuthorityTrust,
    SelfManagedSettings,
    TrustOutcome,
    delete_bindings,
    self_made_secret,
)
from dra_kit.admission.review import configuration_name
from dra_kit.author.driver import Driver, needs_settings
from dra_kit.author.settings import author_settings
from dra_kit.author.target import load_driver
from dra_kit.cli.options import (
    TargetCommand,
    cdi_dir_option,
    cluster_options,
    complete_target,
    credentials_of,
    is_help,
    kubelet_dir_option,
    output_option,
    path,
    print_json,
    target_of,
    variable_option,
)
from dra_kit.client.api import Client
from dra_kit.client.credentials import Credentials
from dra_kit.diagnosis.check import Account, CheckOptions, role_process, run_checks
from dra_kit.diagnosis.cluster_checks import CheckResult, has_failed
from dra_kit.diagnosis.status import status_problems, status_text, statuses, with_problems
from dra_kit.diagnosis.support_bundle import SupportBundle, gather, write_archive
from dra_kit.diagnosis.who import DeviceUsesOnNode, in_cluster, is_node, on_node, who_table
from dra_kit.errors import ConfigurationError
from dra_kit.kubelet.sockets import operation_links
from dra_kit.text import escape_unprintable


class CheckCommand(TargetCommand):
    """Its TARGET is optional; in the pod of a role it defaults to the role's."""

    def load(self, own: Sequence[click.Parameter], args: Sequence[str]) -> Driver[Any, Any] | None:
        """Return the driver of TARGET."""
        target = target_of(own, args) or ("" if is_help(args) else getattr(role_process(), "target", ""))
        return load_driver(target) if target else None


@click.command(cls=CheckCommand)
@click.argument("target", required=False, shell_complete=complete_target)
@cluster_options
@click.option("--driver", help="also check this driver: its slices, classes and sockets  [default: that of TARGET]")
@variable_option(
    "--node",
    "nodes",
    multiple=True,
    envvar="DRA_NODE_NAME",
    help="node whose kubelet is asked; may be repeated  [default: the first five]",
)
@click.option(
    "--account", type=click.Choice(["user", "node", "decommission", "controller", "webhook"]),
    help="purpose of the account whose rights are checked  [default: the role of this pod, else user]",
)  # fmt: skip
@variable_option(
    "--own-certificate",
    envvar="DRA_WEBHOOK_OWN_CERTIFICATE",
    default="",
    help="Service of a webhook that creates its own certificate",
)
@kubelet_dir_option("root directory of the kubelet; if it does not exist, this machine is not a node")
@cdi_dir_option("directory to which drivers write CDI files")
@variable_option(
    "--cri-socket",
    type=path(),
    envvar="DRA_CRI_SOCKET",
    help="socket of the container runtime  [default: the existing one of containerd, CRI-O and k3s]",
)
@variable_option(
    "--nri-socket",
    type=path(),
    envvar="DRA_NRI_SOCKET",
    help="socket of the container runtime for NRI, which drivers with pod hooks use  [default: not checked, or with "
    "TARGET the usual one]",
)
@output_option
@click.pass_context
def check(ctx: click.Context, /, **options: Any) -> None:
    """Check whether a cluster, and this node, meet the requirements of DRA drivers.

    With a kubeconfig, the command checks releases, rights, feature gates (with a dry run that stores nothing), the
    kubelets' settings, and whether the container runtimes support CDI. With TARGET, it also checks the requirements of
    the driver's code: cluster-wide pools, binding, taint rules, policy, objects. On a node, as root or in a driver's
    pod, it also checks the kubelet's root directory, the sockets, and the CDI settings of the container runtime.

    Each line starts with ok, warn or FAIL; warn and FAIL say what to do. Exit code 0: no FAIL; 1: at least one FAIL.

    \b
      dra-kit check --driver kitchen.pizza.example
      kubectl exec ds/pizza-node -- dra-kit check
      kubectl exec deploy/pizza-controller -- dra-kit check
    """  # noqa: D301 - click's mark for a paragraph that is not wrapped
    driver: Driver[Any, Any] | None = ctx.meta.get("driver")
    if driver is not None and options["driver"] not in {None, driver.name}:
        raise click.UsageError(f"TARGET is driver {driver.name}, but --driver is {options['driver']}; omit one.")
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
        nri_socket=options["nri_socket"],
    )
    found = asyncio.run(_checked(wanted, options))
    if options["output"] == "json":
        print_json({"findings": to_builtins(found)})
    else:
        for item in found:
            click.echo(str(item))
    ctx.exit(1 if has_failed(found) else 0)


def _settings(ctx: click.Context, driver: Driver[Any, Any] | None, account: str) -> BaseModel | None:
    """Return the driver's own settings if the namespaces of its objects, and so its rights, depend on them."""
    if driver is None or account not in {"node", "decommission"} or not needs_settings(driver):
        return None
    return author_settings(driver, ctx.meta.get("driver_settings", {}))


async def _checked(wanted: CheckOptions, options: Mapping[str, Any]) -> list[CheckResult]:
    required = wanted.kubelet_dir is None
    credentials, why = await _perhaps_credentials(options["kubeconfig"], options["context"], required=required)
    return await run_checks(wanted, credentials, why)


async def _perhaps_credentials(
    kubeconfig: Path | None, context: str | None, *, required: bool = False
) -> tuple[Credentials | None, str]:
    """Return the credentials, or why there are none; raise only if they are required or the kubeconfig is named."""
    try:
        return await credentials_of(kubeconfig, context), ""
    except ConfigurationError as error:
        if kubeconfig is not None or required:
            raise
        return None, error.problem


UNHEALTHY: Final = 3
"""Exit code when a driver has a problem or does not answer."""


@click.command
@click.option("--driver", help="name of the driver  [default: all drivers on this node]")
@kubelet_dir_option()
@output_option
@click.pass_context
def status(ctx: click.Context, driver: str | None, kubelet_dir: Path, output: str) -> None:
    """Show the state of the drivers on this node. Run it on the node as root, or in a driver's pod.

    For each driver: prepared claims and their pods, effects on the hardware, the last failures, whether the kubelet has
    registered the driver and why not, and published and desired slices. During an update, a driver has two processes:
    the command shows which one the kubelet calls, and what the new one waits for.

    Exit code 0: no problems; 3: a driver has a problem or does not answer.

    \b
      kubectl exec ds/pizza-node -- dra-kit status
    """  # noqa: D301 - click's mark for a paragraph that is not wrapped
    documents, silent = asyncio.run(statuses(kubelet_dir, driver))
    if output == "json":
        print_json({"drivers": list(map(with_problems, documents)), "notAnswering": silent})
    else:
        click.echo("\n\n".join(map(status_text, documents)), nl=bool(documents))
        for line in silent:
            click.echo(escape_unprintable(line), err=True)
    ctx.exit(UNHEALTHY if silent or any(map(status_problems, documents)) else 0)


NOT_IN_USE: Final = 3
"""Exit code when none of the requested devices is in use."""


@click.command
@click.argument("wanted", metavar="[NODE|POD|CLAIM|DEVICE]...", nargs=-1)
@cluster_options
@click.option("-n", "--namespace", help="only claims of this namespace")
@click.option(
    "--source", type=click.Choice(["auto", "node", "cluster"]), default="auto", show_default=True,
    help="ask this node's drivers and kubelet, or the API server; auto asks the node if this machine is a node and "
    "neither --kubeconfig nor --context nor KUBECONFIG names a cluster",
)  # fmt: skip
@kubelet_dir_option()
@variable_option(
    "--cdi-dir",
    "cdi_dirs",
    multiple=True,
    type=path(),
    envvar="DRA_CDI_DIR",
    help="directory of CDI files; may be repeated  [default: /var/run/cdi, /etc/cdi]",
)
@output_option
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
    """Show who uses which device: driver, pool, device, share, hardware id, claim, pod, container.

    Without arguments, all devices in use are listed. An argument is the name of a node, a pod, a claim or a device, or
    a hardware id (GPU-8f3c…). Pods and claims may be written as namespace/name, devices as pool/name.

    On a node, as root, the command asks the drivers, the kubelet and the CDI files, and not the API server; drivers
    built with dra-kit also report hardware ids. Elsewhere it reads claims and pods of drivers in any language.

    Exit code 0: a device is in use; 3: none is in use; 1: unknown, because a driver on this node does not answer.

    \b
      dra-kit who
      dra-kit who gpu-node-7
      dra-kit who team-a/trainer-0
      kubectl exec ds/pizza-node -- dra-kit who GPU-8f3c2c4e-…
    """  # noqa: D301 - click's mark for a paragraph that is not wrapped
    named = kubeconfig or context or os.environ.get("KUBECONFIG")
    here = source == "node" or (source == "auto" and not named and is_node(kubelet_dir))
    if source == "auto" and not here and not (kubeconfig or context) and is_node(kubelet_dir):
        click.echo("note: KUBECONFIG is set, so the API server is asked; --source node asks this node", err=True)
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
        print_json({"devices": [use.to_json() for use in uses], "notKnown": list(found.gaps)})
    else:
        for gap in found.gaps:
            click.echo(escape_unprintable(f"note: {gap}"), err=True)
        if uses:
            click.echo(who_table(uses))
        else:
            of = f" of {', '.join(wanted)}" if wanted else ""
            if found.is_silent:
                why = "a driver does not answer; see dra-kit status"
                click.echo(escape_unprintable(f"cannot check whether a device{of} is in use: {why}"), err=True)
                ctx.exit(1)
            hint = "; hardware ids are only known on the device's node" if wanted else ""
            where = " on this node; --source cluster asks the API server" if here else hint
            click.echo(escape_unprintable(f"no device{of} is in use{where}"), err=True)
    ctx.exit(0 if uses else 1 if found.is_silent else NOT_IN_USE)


async def _in_cluster(kubeconfig: Path | None, context: str | None, namespace: str | None) -> DeviceUsesOnNode:
    return await in_cluster(await credentials_of(kubeconfig, context), namespace)


@click.command
@click.argument("file", metavar="FILE.tar.gz", type=path(dir_okay=False))
@click.option("--driver", help="name of the driver  [default: the only one on this node]")
@cluster_options
@kubelet_dir_option()
def support_bundle(
    file: Path, driver: str | None, kubeconfig: Path | None, context: str | None, kubelet_dir: Path
) -> None:  # fmt: skip
    """Collect the data that is needed to diagnose a driver, without secrets.

    With a kubeconfig: checks, slices, classes, claims, nodes, Events, and the driver's pods with their logs. On a node,
    as root or in the driver's pod, also the output of status and who, and metrics.

    The archive contains no Secrets, ConfigMaps, environments, commands, opaque configuration, driver data in a claim's
    status, or kubeconfigs. Such values are also removed from logs. Check the archive before you send it: the driver's
    own code may have logged other secrets.

    \b
      dra-kit support-bundle pizza.tar.gz --driver kitchen.pizza.example
    """  # noqa: D301 - click's mark for a paragraph that is not wrapped
    if not file.name.endswith((".tar.gz", ".tgz")):
        raise click.UsageError(f"{file} must end in .tar.gz or .tgz; use for example {file.name}.tar.gz")
    bundle = asyncio.run(_gathered(driver or _only_driver(kubelet_dir), kubeconfig, context, kubelet_dir))
    files = bundle.safe_files()
    write_archive(file, files)
    click.echo(f"{len(files)} files saved in {file}")
    for line in bundle.missing:
        click.echo(escape_unprintable(f"note: {line}"), err=True)


def _only_driver(kubelet_dir: Path) -> str:
    names = [link.parent.name for link in operation_links(kubelet_dir)]
    if len(names) != 1:
        found = f"this node has {', '.join(names)}" if names else f"no driver was found in {kubelet_dir}"
        raise click.UsageError(f"Missing option '--driver': {found}.")
    return names[0]


async def _gathered(driver: str, kubeconfig: Path | None, context: str | None, kubelet_dir: Path) -> SupportBundle:
    credentials, why = await _perhaps_credentials(kubeconfig, context)
    return await gather(driver, credentials, kubelet_dir, why)


@click.command
@variable_option("--driver", required=True, envvar="DRA_DRIVER", help="name of the driver")
@click.option("--service", required=True, help="name of the Service in front of the webhook's pods")
@variable_option(
    "-n",
    "--namespace",
    envvar="DRA_NAMESPACE",
    help="namespace of the Service and the Secret  [default: that of the credentials]",
)
@click.option("--configuration", help="the ValidatingWebhookConfiguration  [default: opaque-config.DRIVER]")
@click.option(
    "--drop-bindings",
    metavar="NAME",
    help="finally delete the RoleBinding and ClusterRoleBinding of this name, which grant this command its rights",
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
    """Make the API server trust a webhook's self-made certificate (--own-certificate).

    The command copies the certificate authority from the webhook's Secret, SERVICE-self-made, to the driver's
    ValidatingWebhookConfiguration. It creates the Secret if it is missing. Halfway through its lifetime, an authority
    gets a successor, and both are trusted. The chart runs this command in a Job after each install, upgrade and
    rollback. It may be repeated at any time.
    """
    trusting = configuration or configuration_name(driver)

    async def run() -> TrustOutcome:
        credentials = await credentials_of(kubeconfig, context)
        place = SelfManagedSettings(
            namespace=namespace or credentials.connection.namespace or "default", service=service
        )
        async with Client(credentials, user_agent=f"dra-kit/{__version__} webhook-certificate") as client:
            done = await AuthorityTrust(client, place, trusting).establish()
            if drop_bindings:
                await delete_bindings(client, drop_bindings, place.namespace)
            return done

    done = asyncio.run(run())
    click.echo(f"{done.secret}: authority {'created' if done.made else 'unchanged'}")
    changed = f"now trusts it: {', '.join(done.webhooks)}" if done.webhooks else "already trusts it"
    click.echo(f"ValidatingWebhookConfiguration {trusting} {changed}")
