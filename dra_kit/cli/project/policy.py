"""``dra-kit policy``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from dra_kit.cli.options.common import complete_target
from dra_kit.cli.options.role_command import RoleCommand

if TYPE_CHECKING:
    from dra_kit.admission.policy.manifest import Action
    from dra_kit.author.driver import Driver


@click.command(cls=RoleCommand)
@click.argument("target", shell_complete=complete_target)
@click.option(
    "--action",
    default="Deny",
    show_default=True,
    type=click.Choice(["Deny", "Warn", "Audit"]),
    help="what happens to an object that breaks a rule; Warn and Audit let it pass",
)
@click.pass_context
def command(ctx: click.Context, target: str, action: Action) -> None:
    """Write a ValidatingAdmissionPolicy and its binding that check configuration for TARGET, as YAML.

    For clusters that want no webhook: the API server checks types, ranges, patterns and keys of opaque.parameters by
    itself. What the driver's models say beyond that is left to the nodes, and listed on top.

    \b
      dra-kit policy gpu_driver.driver:driver >policy.yaml
      kubectl apply -f policy.yaml
    """  # noqa: D301 - click's mark for a paragraph that is not wrapped
    del target
    from dra_kit.admission.policy.manifest import manifest, policy_objects

    driver: Driver[Any, Any] = ctx.meta["driver"]
    click.echo(manifest(policy_objects(driver, [action]), driver.name), nl=False)
