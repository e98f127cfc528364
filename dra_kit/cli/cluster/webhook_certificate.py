"""``dra-kit webhook-certificate``."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dra_kit import __version__
from dra_kit.cli.cluster.source_options import cluster_options, credentials_of

if TYPE_CHECKING:
    from dra_kit.admission.certificate_trust import TrustOutcome


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
def command(  # noqa: PLR0917 - click passes them by name
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
    from dra_kit.admission.certificate_trust import AuthorityTrust, drop_bindings
    from dra_kit.admission.certificates import SelfManagedSettings
    from dra_kit.admission.webhook_configuration import configuration_name
    from dra_kit.client.api import Client

    trusting = configuration or configuration_name(driver)

    async def run() -> TrustOutcome:
        credentials = await credentials_of(kubeconfig, context)
        place = SelfManagedSettings(namespace=namespace or credentials.namespace or "default", service=service)
        async with Client(credentials, user_agent=f"dra-kit/{__version__} webhook-certificate") as client:
            done = await AuthorityTrust(client, place, trusting).establish()
            if drop_bindings:
                await drop_bindings(client, drop_bindings, place.namespace)
            return done

    done = asyncio.run(run())
    click.echo(f"{done.secret}: authority {'is new' if done.made else 'stays'}")
    changed = f"trusts it now: {', '.join(done.webhooks)}" if done.webhooks else "trusts it already"
    click.echo(f"ValidatingWebhookConfiguration {trusting} {changed}")
