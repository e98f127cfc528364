"""``dra-kit conformance``."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click
from pydantic import BaseModel

from dra_kit.author.driver import Driver
from dra_kit.author.settings import setting_variable
from dra_kit.cli.options import NewFile, TargetCommand, complete_target, path
from dra_kit.cli.sandbox_drivers import sandbox_driver
from dra_kit.conformance import report, runner
from dra_kit.conformance.catalogue import selected
from dra_kit.conformance.profile import FILE, DriverProfile, read_profile
from dra_kit.conformance.subject import SimulatedNode, command_of_target
from dra_kit.sandbox.drivers.commands import DriverCommand, parse_commands
from dra_kit.sandbox.drivers.project import project_of


@click.command(cls=TargetCommand)
@click.argument("target", required=False, shell_complete=complete_target)
@click.option(
    "--command",
    metavar="CMD",
    help="instead of TARGET: the command that starts a driver in any language; {node}, {kubelet}, {plugins}, "
    "{registry}, {cdi}, {kubeconfig} and {pod_uid} are replaced",
)
@click.option(
    "--socket-dir",
    type=path(file_okay=False),
    metavar="DIR",
    help="instead of TARGET: directory that stands for /var/lib/kubelet of a driver that you start; DIR/kubeconfig is "
    "written, and removed at the end",
)
@click.option(
    "--cdi-dir", type=path(file_okay=False), help="with --socket-dir: directory of CDI files  [default: DIR/cdi]"
)
@click.option("--node", default="node-1", show_default=True, help="name of the node")
@click.option(
    "--profile",
    type=path(dir_okay=False, exists=True),
    metavar="FILE",
    help=f"YAML file with what cannot be known without the hardware  [default: {FILE} in TARGET's project]",
)
@click.option("--only", default="", metavar="CHECKS", help="groups and checks to run, such as P,U2  [default: all]")
@click.option("--json", "json_file", type=NewFile(), metavar="FILE", help="write the report as JSON")
@click.option("--junit", "junit_file", type=NewFile(), metavar="FILE", help="write the report as JUnit XML")
@click.option("--html", "html_file", type=NewFile(), metavar="FILE", help="write the report as one page")
@click.pass_context
def conformance(
    ctx: click.Context,
    /,
    target: str | None,
    *,
    command: str | None,
    socket_dir: Path | None,
    cdi_dir: Path | None,
    node: str,
    profile: Path | None,
    only: str,
    json_file: Path | None,
    junit_file: Path | None,
    html_file: Path | None,
) -> None:
    """Judge any DRA driver: registration, prepare, unprepare, slices, health, metadata, API, life-cycle.

    The driver runs against a simulated kubelet and an API server in this process. It is that of TARGET, of --command,
    or the one that registers in --socket-dir. Checks that need to restart the driver do not apply to the latter.

    Exit code 0: the driver passes each check that a driver must pass; 1: it does not; 2: the arguments are invalid.

    \b
      dra-kit conformance .
      dra-kit conformance --command 'my-driver --node-name {node} --kubeconfig {kubeconfig} --cdi-root {cdi}'
      dra-kit conformance . --only P,U2 --html report.html
    """  # noqa: D301 - click's mark for a paragraph that is not wrapped
    if sum(item is not None for item in (target, command, socket_dir)) != 1:
        raise click.UsageError("Name one driver: a TARGET, --command or --socket-dir.")
    if cdi_dir is not None and socket_dir is None:
        raise click.UsageError("--cdi-dir requires --socket-dir.")
    try:
        selected(only)
    except ValueError as error:
        raise click.UsageError(f"--only {only}: {error}.") from None
    settings = runner.ConformanceSettings(
        subject=target or command or f"--socket-dir {socket_dir}",
        command=_starter(ctx, target, command),
        profile=_profile(target, profile),
        only=only,
        socket_dir=socket_dir.absolute() if socket_dir is not None else None,
        cdi_dir=cdi_dir.absolute() if cdi_dir is not None else None,
        node=node,
    )
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)  # the driver is stopped as after Ctrl-C
    verdict = asyncio.run(runner.judge(settings, report.TerminalProgress(click.echo)))
    for line in report.render_summary(verdict):
        click.echo(line)
    if json_file is not None:
        json_file.write_text(json.dumps(report.to_json(verdict), indent=2) + "\n", encoding="utf-8")
    if junit_file is not None:
        junit_file.write_text(report.to_junit(verdict), encoding="utf-8")
    if html_file is not None:
        html_file.write_text(report.to_html(verdict), encoding="utf-8")
    ctx.exit(0 if verdict.conforms else 1)


def _starter(
    ctx: click.Context, target: str | None, command: str | None
) -> Callable[[SimulatedNode], DriverCommand] | None:
    if command is not None:
        [parsed] = parse_commands("command", [command], directory=Path.cwd())
        return lambda _: parsed
    if target is None:
        return None
    driver: Driver[Any, Any] = ctx.meta["driver"]
    prepared = sandbox_driver(target, driver, ctx.meta.get("driver_settings", {}), 1)

    def start(places: SimulatedNode) -> DriverCommand:
        author = prepared.settings_on(places.node, places.scratch)
        return command_of_target(target, _variables(author, prepared.values))

    return start


def _variables(author: BaseModel | None, values: Mapping[str, object]) -> dict[str, str]:
    """Return settings as variables of ``dra-kit node``."""
    if author is None:
        return {}
    dumped = author.model_dump(mode="json", include=set(values))
    return {
        setting_variable(name): value if isinstance(value, str) else json.dumps(value)
        for name, value in dumped.items()
        if value is not None
    }


def _profile(target: str | None, file: Path | None) -> DriverProfile:
    project = project_of(target) if target is not None else None
    if file is None and project is not None and (project.folder / FILE).is_file():
        file = project.folder / FILE
    profile = read_profile(file) if file is not None else DriverProfile()
    if profile.device_classes is None and project is not None and project.classes:
        profile = profile.model_copy(update={"device_classes": project.classes[0]})
    return profile
