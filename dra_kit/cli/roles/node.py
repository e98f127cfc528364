"""``dra-kit node``."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import click

from dra_kit.author.driver import Driver
from dra_kit.author.settings import author_settings
from dra_kit.cli.app import value_of
from dra_kit.cli.options.common import check_name, common, complete_target, expected_driver, path
from dra_kit.cli.options.role_command import RoleCommand
from dra_kit.cli.roles.node_options import node_options, node_settings
from dra_kit.errors import StoreError
from dra_kit.node.settings import NodeSettings
from dra_kit.process import logging as process_logging
from dra_kit.process import tracing

_GLOBS: Final = "--globs"


class NodeCommand(RoleCommand):
    """Takes a file of globs in the place of a TARGET, too."""

    def load(self, own: Sequence[click.Parameter], args: Sequence[str]) -> Driver[Any, Any] | None:
        """Return the driver of TARGET, or of ``--globs``."""
        file = value_of(_GLOBS, args)
        if file is None:
            return super().load(own, args)
        from dra_kit.author.no_code.driver import load_globs

        return load_globs(Path(file))


@click.command(cls=NodeCommand)
@click.argument("target", required=False, shell_complete=complete_target)
@click.option(
    _GLOBS,
    type=path(dir_okay=False),
    metavar="FILE",
    help="in place of a TARGET: a file of globs of device nodes, which is a driver",
)
@node_options
@click.option(
    "--state-dir",
    type=path(),
    envvar="DRA_STATE_DIR",
    show_envvar=True,
    help="durable state; default: plugins/<driver> below the kubelet's directory",
)
@click.option("--dump-state", is_flag=True, help="print records, effects, epochs and what is damaged as JSON, and end")
@expected_driver
@common
@click.pass_context
def command(
    ctx: click.Context,
    /,
    target: str | None,
    globs: Path | None,
    state_dir: Path | None,
    *,
    dump_state: bool,
    expected: str | None,
    **options: Any,
) -> None:
    """Run TARGET on this node: answer the kubelet, prepare claims, publish devices.

    TARGET is module:attr, ./file.py, a folder with a pyproject.toml, or a file of globs of device nodes (.yaml).
    """
    if target is None and globs is None:
        raise click.UsageError("Missing argument 'TARGET', or option '--globs': the driver to run.")
    if target is not None and globs is not None:
        raise click.UsageError(f"TARGET {target} and {_GLOBS} {globs} do not go together: they name two drivers.")
    driver: Driver[Any, Any] = ctx.meta["driver"]
    check_name(driver, expected)
    if dump_state:
        settings = NodeSettings(node_name="", kubelet_dir=options["kubelet_dir"], state_dir=state_dir)
        click.echo(json.dumps(_dumped(driver.name, settings), indent=2))
        return
    author = author_settings(driver, ctx.meta.get("driver_settings", {}))
    settings = node_settings(options, state_dir=state_dir, author=author)
    process_logging.configure(options["log_format"], options["log_level"].upper())
    tracing.configure(driver.name, "node")
    import uvloop

    from dra_kit.node.agent import run_node

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        ctx.exit(runner.run(run_node(driver, settings)))


def _dumped(driver: str, settings: NodeSettings) -> dict[str, Any]:
    """Return the state of the node; damaged health hides nothing else."""
    from dra_kit.node.health_monitor import FILE, dump_health
    from dra_kit.node.state.store import dump_state

    dumped = dump_state(settings.database(driver))
    try:
        return dumped | {"health": dump_health(settings.state(driver) / FILE)}
    except StoreError as error:
        return dumped | {"health": [], "damaged": [*dumped["damaged"], str(error)]}
