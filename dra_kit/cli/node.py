"""``dra-kit node``."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click

from dra_kit.author.driver import Driver
from dra_kit.cli.driver_settings import author_settings
from dra_kit.cli.options import RoleCommand, common, complete_target, path, value_of
from dra_kit.errors import StoreError
from dra_kit.node.settings import NodeSettings
from dra_kit.process import logging as process_logging

_GLOBS: Final = "--globs"


class NodeCommand(RoleCommand):
    """Takes a file of globs in the place of a TARGET, too."""

    def load(self, own: Sequence[click.Parameter], args: Sequence[str]) -> Driver[Any, Any] | None:
        """The driver of TARGET, or of ``--globs``."""
        file = value_of(_GLOBS, args)
        if file is None:
            return super().load(own, args)
        from dra_kit.globs.driver import load_globs

        return load_globs(Path(file))


@click.command(cls=NodeCommand)
@click.argument("target", required=False, shell_complete=complete_target)
@click.option(
    _GLOBS,
    type=path(dir_okay=False),
    metavar="FILE",
    help="in place of a TARGET: a file of globs of device nodes, which is a driver",
)
@click.option("--node-name", envvar="DRA_NODE_NAME", show_envvar=True, help="name of this node's Node object")
@click.option(
    "--kubelet-dir",
    default="/var/lib/kubelet",
    show_default=True,
    type=path(),
    envvar="DRA_KUBELET_DIR",
    show_envvar=True,
    help="root directory of the kubelet",
)
@click.option(
    "--cdi-dir",
    default="/var/run/cdi",
    show_default=True,
    type=path(),
    envvar="DRA_CDI_DIR",
    show_envvar=True,
    help="where the container runtime looks for CDI files",
)
@click.option(
    "--state-dir",
    type=path(),
    envvar="DRA_STATE_DIR",
    show_envvar=True,
    help="durable state; default: plugins/<driver> below the kubelet's directory",
)
@click.option(
    "--pod-uid", envvar="DRA_POD_UID", show_envvar=True, help="UID of this pod, so that rolling updates overlap"
)
@click.option(
    "--dra-versions",
    default="v1,v1beta1",
    show_default=True,
    envvar="DRA_VERSIONS",
    show_envvar=True,
    help="versions of the kubelet's DRA service to offer",
)
@click.option(
    "--hang-timeout",
    default=600.0,
    show_default=True,
    type=click.FloatRange(min=60.0),
    envvar="DRA_HANG_TIMEOUT",
    show_envvar=True,
    help="seconds after which a call of the driver's code that has not returned makes /healthz fail",
)
@click.option(
    "--print-rules",
    is_flag=True,
    help="print what the driver's ClusterObject effects and its policy need of the API with these settings, as values "
    "of the chart, and end",
)
@click.option(
    "--orphan-after",
    default=600.0,
    show_default=True,
    type=click.FloatRange(min=60.0),
    envvar="DRA_ORPHAN_AFTER",
    show_envvar=True,
    help="seconds that a claim must have been gone until it is released without the kubelet",
)
@click.option(
    "--check-device-nodes/--no-check-device-nodes",
    default=True,
    show_default=True,
    envvar="DRA_CHECK_DEVICE_NODES",
    show_envvar=True,
    help="look for the device files of a claim on this node before it is told prepared; not in a container that has "
    "not the node's /dev",
)
@click.option("--dump-state", is_flag=True, help="print records, effects, epochs and what is damaged as JSON, and end")
@common
@click.pass_context
def command(  # noqa: PLR0917 - click passes them by name
    ctx: click.Context,
    target: str | None,
    globs: Path | None,
    node_name: str | None,
    kubelet_dir: Path,
    cdi_dir: Path,
    state_dir: Path | None,
    pod_uid: str | None,
    dra_versions: str,
    hang_timeout: float,
    print_rules: bool,
    orphan_after: float,
    check_device_nodes: bool,
    dump_state: bool,
    kubeconfig: Path | None,
    probe_address: str,
    log_format: Any,
    log_level: str,
) -> None:
    """Run TARGET on this node: answer the kubelet, prepare claims, publish devices.

    TARGET is module:attr, ./file.py, a folder with a pyproject.toml, or a file of globs of device nodes (.yaml).
    """
    if target is None and globs is None:
        raise click.UsageError("Missing argument 'TARGET', or option '--globs': the driver to run.")
    if target is not None and globs is not None:
        raise click.UsageError(f"TARGET {target} and {_GLOBS} {globs} do not go together: they name two drivers.")
    driver: Driver[Any, Any] = ctx.meta["driver"]
    if print_rules:
        click.echo(_rules(driver, ctx.meta.get("driver_settings", {})), nl=False)
        return
    if dump_state:
        settings = NodeSettings(node_name="", kubelet_dir=kubelet_dir, state_dir=state_dir)
        click.echo(json.dumps(_dumped(driver.name, settings), indent=2))
        return
    if not node_name:
        raise click.UsageError("Missing option '--node-name' (DRA_NODE_NAME): the name of this node's Node object.")
    process_logging.configure(log_format, log_level.upper())
    settings = NodeSettings(
        node_name=node_name,
        kubeconfig=kubeconfig,
        kubelet_dir=kubelet_dir.absolute(),
        cdi_dir=cdi_dir.absolute(),
        state_dir=state_dir.absolute() if state_dir else None,
        pod_uid=pod_uid,
        probe_address=probe_address,
        hang_timeout=hang_timeout,
        orphan_after=orphan_after,
        check_device_nodes=check_device_nodes,
        dra_versions=tuple(item.strip() for item in dra_versions.split(",") if item.strip()),
        author=author_settings(driver, ctx.meta.get("driver_settings", {})),
    )
    import uvloop

    from dra_kit.node.agent import run_node

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        ctx.exit(runner.run(run_node(driver, settings)))


def _dumped(driver: str, settings: NodeSettings) -> dict[str, Any]:
    """What the node keeps; health that is damaged hides nothing else."""
    from dra_kit.node.health.memory import FILE, dump_health
    from dra_kit.node.state.dump import dump_state

    dumped = dump_state(settings.database(driver))
    try:
        return dumped | {"health": dump_health(settings.state(driver) / FILE)}
    except StoreError as error:
        return dumped | {"health": [], "damaged": [*dumped["damaged"], str(error)]}


def _rules(driver: Driver[Any, Any], given: Mapping[str, object]) -> str:
    """What the node's account needs beside what every driver needs, as values of the chart."""
    import yaml

    from dra_kit.author.effects.cluster_object import ClusterObject

    objects = [effect for effect in driver.effects.values() if issubclass(effect, ClusterObject)]
    settings = author_settings(driver, given) if objects else None
    policy = driver.policy
    anywhere: list[Any] = policy.watches.rules() if policy is not None and policy.watches is not None else []
    namespaced: dict[str, list[Any]] = {}
    for effect in objects:
        namespaces = effect.namespaces(settings)
        if namespaces is None:
            anywhere += effect.rules()
        for namespace in namespaces or ():
            namespaced.setdefault(namespace, []).extend(effect.rules())
    rules: dict[str, Any] = {"extraRules": anywhere} | ({"namespacedRules": namespaced} if namespaced else {})
    text: str = yaml.safe_dump({"node": rules}, sort_keys=False)
    return text
