"""``dra-kit dev``."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping
from copy import copy
from pathlib import Path
from typing import Any, Final

import click
from msgspec.structs import replace

from dra_kit.author.target import load_driver
from dra_kit.cli.driver_settings import settings_options
from dra_kit.cli.options import LOG_LEVELS, TargetCommand, is_help, target_of, variable_option
from dra_kit.cli.sandbox import (
    HERE,
    is_project_here,
    page_port,
    require_unused,
    run_interruptibly,
    sandbox,
    sandbox_settings,
)
from dra_kit.cli.sandbox_drivers import sandbox_driver
from dra_kit.errors import ConfigurationError
from dra_kit.kubernetes.release import DEFAULT, OLDEST
from dra_kit.sandbox.dev.screen import screen_session
from dra_kit.sandbox.dev.session import DevOptions, DevSession, LineDisplay
from dra_kit.sandbox.dev.watch import FileWatcher
from dra_kit.sandbox.drivers.project import place_of
from dra_kit.sandbox.views.live import LiveView
from dra_kit.text import escape_unprintable

_SHARED: Final = (
    "files",
    "nodes",
    "capacity",
    "labels",
    "kubeconfig",
    "kubernetes",
    "alpha",
    "feature_gates",
    "runtime_config",
    "network_namespaces",
    "containers",
    "node_namespaces",
    "node_files",
    "time_scale",
    "webhook",
    "record",
    "ui",
    "ui_port",
)
"""Options that are shared with ``dra-kit sandbox``."""
_OWN_TEXTS: Final = {
    "kubernetes": f"simulate this release, from {OLDEST}  [default: {DEFAULT}]",
    "ui": "serve a page that shows devices, pods and events",
    "node_namespaces": "give each node its own mounts and network, in which its containers run; the default with "
    "--node-files, where this machine allows it",
}
"""The help of shared options whose text elsewhere names options that only ``dra-kit sandbox`` has."""


class DevCommand(TargetCommand):
    """Uses the project in the working directory by default."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Store the arguments, which are passed to the driver's process."""
        place = _place_of_target(target_of(self.params, args))
        # start before the files are read, to see changes made meanwhile. The driver's process, which has no parent
        # context, exits instead of waiting for a change
        watch = FileWatcher(*_watched(place)) if place is not None and ctx.parent is not None else None
        try:
            if not ctx.resilient_parsing and not is_help(args) and _lacks_target(self.params, args):
                args = [HERE, *args]
            ctx.meta["arguments"] = list(args)
            return super().parse_args(ctx, args)
        except ConfigurationError as error:
            if watch is None or place is None or is_help(args):
                raise
            _restart_after_change(error, place, watch)
            raise


def _restart_after_change(error: ConfigurationError, place: Path, watch: FileWatcher) -> None:
    """Wait until a file changes, then run the same command in a new process, which imports all modules again."""
    text = escape_unprintable(" ".join(str(error).split()))
    what = f"a file below {place}" if place.is_dir() else str(place)
    click.echo(f"error: {text} [{error.code}]\nwaiting for {what} to change; press Ctrl-C to exit", err=True)

    async def changed() -> None:
        async for _ in watch.changes():
            return

    asyncio.run(changed())
    os.execv(sys.executable, sys.orig_argv)  # noqa: S606 - this very command


def _place_of_target(named: str | None) -> Path | None:
    """Return the place to watch; the named TARGET may be the value of one of the driver's options, still unknown."""
    if named is None or (not Path(named).exists() and not {*named} & {":", "/", "."}):
        return place_of(HERE)
    return place_of(named)


def _watched(place: Path) -> tuple[list[Path], list[Path]]:
    """Return the folders and the files to watch."""
    return ([place], []) if place.is_dir() else ([], [place])


def _lacks_target(params: list[click.Parameter], args: list[str]) -> bool:
    """Return whether no argument can be the TARGET, and the working directory is a project."""
    if not is_project_here():
        return False
    target = target_of(params, args)
    if target is None:
        return True
    if Path(target).exists() or ":" in target:
        return False
    # it may be the value of one of the driver's options
    return target_of([*params, *settings_options(load_driver(HERE), params)], args) is None


@click.command(cls=DevCommand)
@click.argument("target", required=False)
@click.option("--view/--no-view", default=True, help="show a full-screen view if stdout is a terminal, otherwise lines")
@variable_option(
    "--log-level",
    default="",
    envvar="DRA_LOG_LEVEL",
    type=click.Choice(["", *LOG_LEVELS]),
    metavar="[debug|info|warning|error]",
    help="minimum level of the driver's log that is shown  [default: info for your code, warning for dra-kit]",
)
@click.pass_context
def dev(ctx: click.Context, /, target: str | None, **options: Any) -> None:
    """Run TARGET in a one-process cluster, and restart it whenever its files change.

    TARGET is the driver, as for dra-kit sandbox; the default is the project in the working directory. When a file of
    the project changes, the driver is replaced by a rolling update: claims and pods continue. If the new code fails to
    load, its error is reported with file and line, and the old code keeps running. Files of -f are applied again when
    they change.

    \b
      dra-kit dev -f demo/pod.yaml
      dra-kit dev ./pizza.py -f claim.yaml -f pod.yaml

    Keys in the view: r restarts the driver, a recreates the pods of -f, 1 to 5 show a single part, q quits. Exit code
    0: you quit, also with Ctrl-C; 2: the cluster does not start, or an option is invalid.
    """  # noqa: D301 - click's mark for a paragraph that is not wrapped
    if target is None:
        raise click.UsageError(f"Missing argument 'TARGET': {Path.cwd()} is not a project with a driver.")
    if options["kubeconfig"] is not None:
        require_unused(options["kubeconfig"])
    on_screen = options["view"] and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    development = _development(ctx, target, options)
    if on_screen:
        session, reader_gone = screen_session(development), asyncio.Event()  # a terminal that closes sends SIGHUP
    else:
        view = LiveView(sys.stdout)
        session, reader_gone = DevSession(development, LineDisplay(view, sys.stderr)), view.cut_off
    ctx.exit(asyncio.run(run_interruptibly(session, reader_gone)))


def _development(ctx: click.Context, target: str, options: Mapping[str, Any]) -> DevOptions:
    driver = sandbox_driver(target, ctx.meta["driver"], ctx.meta.get("driver_settings", {}), options["nodes"])
    folders, files = _watched(place_of(target) or Path.cwd())
    return DevOptions(
        driver=driver,
        settings=replace(sandbox_settings(options), roles=False),
        arguments=ctx.meta["arguments"],
        folders=folders,
        files=[
            *files,
            *(Path(value) for value in driver.values.values() if isinstance(value, str) and Path(value).is_file()),
        ],
        manifests=options["files"],
        log_level=options["log_level"],
        record=options["record"],
        page=page_port(options),
    )


def _shared(param: click.Parameter) -> click.Parameter:
    """Return an option of ``dra-kit sandbox``, without what its text says of options that this command lacks."""
    if not isinstance(param, click.Option) or param.name not in _OWN_TEXTS:
        return param
    own = copy(param)
    own.help = _OWN_TEXTS[param.name]
    return own


dev.params[1:1] = [_shared(param) for param in sandbox.params if param.name in _SHARED]
