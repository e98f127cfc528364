"""``dra-kit template``."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import yaml

from dra_kit.author.settings import author_settings
from dra_kit.cli.options.common import complete_target, path
from dra_kit.cli.options.driver_settings import setting_value
from dra_kit.cli.options.role_command import RoleCommand
from dra_kit.errors import ConfigurationError
from dra_kit.kubernetes.release import NEWEST, OLDEST

if TYPE_CHECKING:
    from dra_kit.author.driver import Driver
    from dra_kit.template.profile import NodeProfile

_DEFAULT_NAME: Final = "template-node"
_RELEASE: Final = re.compile(r"v?1\.([0-9]+)").fullmatch


@click.command(cls=RoleCommand)
@click.argument("target", shell_complete=complete_target)
@click.option(
    "--profile",
    "file",
    type=path(exists=True, dir_okay=False),
    metavar="FILE",
    help="the kind of node: YAML with name, labels, taints, allocatable, and the driver's settings there",
)
@click.option("--name", help=f"of the node  [default: that of the profile, else {_DEFAULT_NAME}]")
@click.option("--with-node", is_flag=True, help="write the Node, too, as KWOK and 'dra-kit explain --template' take it")
@click.option(
    "--kubernetes",
    default=str(NEWEST),
    show_default=True,
    metavar="RELEASE",
    help="the cluster's release: how counters are published differs",
)
@click.option("-o", "--output", default="yaml", show_default=True, type=click.Choice(["yaml", "json"]))
@click.option(
    "--timeout",
    default=10.0,
    show_default=True,
    type=click.FloatRange(min=0.1),
    help="seconds that the driver gets to find its devices",
)
@click.pass_context
def command(  # noqa: PLR0917 - click passes them by name
    ctx: click.Context,
    target: str,
    file: Path | None,
    name: str | None,
    with_node: bool,
    kubernetes: str,
    output: str,
    timeout: float,
) -> None:
    """Write the ResourceSlices that TARGET would publish on a node that does not exist yet.

    Autoscalers need them to know whether another node would help. They come from the driver's own provider, which runs
    on this machine with the settings given: those of the profile, and flags, which win.

    \b
      dra-kit template gpu_driver.driver:driver --fake-gpus h100
      dra-kit template . --profile profiles/h100.yaml --with-node >h100.yaml
      dra-kit explain pod train --template h100.yaml
    """  # noqa: D301 - click's mark for a paragraph that is not wrapped
    del target
    from dra_kit.process import logging as process_logging
    from dra_kit.template.profile import NodeProfile, node_object, read_profile

    process_logging.configure("text", logging.WARNING)  # what the driver's own code says
    driver: Driver[Any, Any] = ctx.meta["driver"]
    profile = read_profile(file) if file is not None else NodeProfile(name=_DEFAULT_NAME)
    if name is not None:
        profile = profile.model_copy(update={"name": name})
    given = ctx.meta.get("driver_settings", {})
    documents = _slices(driver, profile, given, kubernetes, timeout)
    if with_node:
        documents.insert(0, node_object(profile))
    if output == "json":
        click.echo(json.dumps({"apiVersion": "v1", "kind": "List", "items": documents}, indent=2))
    else:
        click.echo(yaml.safe_dump_all(documents, sort_keys=False), nl=False)


def _slices(
    driver: Driver[Any, Any], profile: NodeProfile, given: dict[str, object], kubernetes: str, timeout: float
) -> list[dict[str, Any]]:
    from dra_kit.author.context import NodeInfo
    from dra_kit.client.server_version import ServerFeatures
    from dra_kit.node.first_inventory import discover_once
    from dra_kit.template.slices import template_slices

    release = _RELEASE(kubernetes)
    if release is None or int(release[1]) < OLDEST.minor:
        raise ConfigurationError(f"--kubernetes {kubernetes} is none that is supported; give {OLDEST} to {NEWEST}")
    settings = author_settings(driver, {**_settings(driver, profile), **given})
    log = logging.getLogger("dra_kit")
    level = log.level
    log.setLevel(logging.CRITICAL)  # why the driver fails is told once, by this command
    try:
        inventory = discover_once(driver, settings, timeout, NodeInfo(profile.name, profile.labels))
    finally:
        log.setLevel(level)
    return [
        item.to_json() for item in template_slices(driver, inventory, profile.name, ServerFeatures(1, int(release[1])))
    ]


def _settings(driver: Driver[Any, Any], profile: NodeProfile) -> dict[str, object]:
    known = driver.settings.model_fields if driver.settings else {}
    for name in profile.settings:
        if name not in known:
            raise ConfigurationError(
                f"profile {profile.name}: settings.{name} is no setting of driver {driver.name}; its settings: "
                f"{', '.join(known) or 'none'}"
            )
    return {
        name: setting_value(driver, name, value) if isinstance(value, str) else value
        for name, value in profile.settings.items()
    }
