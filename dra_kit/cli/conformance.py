"""``dra-kit conformance``."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import click
from click.core import ParameterSource
from msgspec.structs import replace
from pydantic import BaseModel

from dra_kit.author.driver import Driver
from dra_kit.author.settings import author_settings, setting_variable
from dra_kit.cli.options import NewFile, TargetCommand, cluster_options, complete_target, credentials_of, path
from dra_kit.cli.sandbox_drivers import sandbox_driver
from dra_kit.client.api import Client
from dra_kit.conformance import report, runner
from dra_kit.conformance.catalogue import selected
from dra_kit.conformance.profile import FILE, DriverProfile, read_profile
from dra_kit.conformance.real_cluster import IMAGE, RealClusterSettings, judge_in_cluster
from dra_kit.conformance.subject import DriverUnderTest, SimulatedNode, command_of_target
from dra_kit.diagnosis.node_checks import NRI_SOCKET
from dra_kit.errors import ConfigurationError
from dra_kit.project.rendering import chart_directory
from dra_kit.sandbox.directory import mark_of, sandbox_directory
from dra_kit.sandbox.drivers.commands import DriverCommand, parse_commands
from dra_kit.sandbox.drivers.project import project_of

_NODE: Final = "node-1"
_OF_CLUSTER: Final = ("driver", "here", "image", "kubeconfig", "context")
"""Options that only ``--cluster`` has a use for."""
_CDI_DIR: Final = Path("/var/run/cdi")
_KUBELET_DIR: Final = Path("/var/lib/kubelet")


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
@click.option(
    "--cluster",
    is_flag=True,
    help="judge by the scheduler and the kubelet of a real cluster, in which the driver is installed: its --driver "
    "name, or a TARGET with this driver",
)
@click.option("--driver", "name", metavar="NAME", help="with --cluster, instead of TARGET: name of the driver")
@click.option(
    "--here",
    is_flag=True,
    help="with --cluster: start the driver of TARGET or --command on this machine, which is --node of the cluster",
)
@click.option("--image", default=IMAGE, show_default=True, help="with --cluster: image of containers, with a shell")
@cluster_options
@click.option(
    "--node",
    help=f"name of the node  [default: {_NODE}; with --cluster, the first one with devices of the driver]",
)
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
    cluster: bool,
    name: str | None,
    here: bool,
    image: str,
    kubeconfig: Path | None,
    context: str | None,
    node: str | None,
    profile: Path | None,
    only: str,
    json_file: Path | None,
    junit_file: Path | None,
    html_file: Path | None,
) -> None:
    """Judge any DRA driver: registration, prepare, unprepare, slices, health, metadata, API, life-cycle.

    The driver runs against a simulated kubelet and an API server in this process. It is that of TARGET, of --command,
    or the one that registers in --socket-dir. Checks that need to restart the driver do not apply to the latter.

    With --cluster, it is one of a real cluster, and judged by the behaviours of KEP-5970: pods get devices of it.

    Exit code 0: the driver passes each check that a driver must pass; 1: it does not; 2: the arguments are invalid, or
    no driver starts in --socket-dir; 130: interrupted, and the reports have what was judged until then.

    \b
      dra-kit conformance .
      dra-kit conformance --command 'my-driver --node-name {node} --kubeconfig {kubeconfig} --cdi-root {cdi}'
      dra-kit conformance . --only P,U2 --html report.html
      dra-kit conformance --cluster --driver gpu.example.com --profile conformance.yaml
    """  # noqa: D301 - click's mark for a paragraph that is not wrapped
    _require_consistent(ctx)
    try:
        selected(only, cluster=cluster)
    except ValueError as error:
        raise click.UsageError(f"--only {only}: {error}.") from None
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)  # what was started is stopped as after Ctrl-C
    known = _profile(target, profile)
    judgement: Coroutine[Any, Any, runner.ConformanceReport]
    if cluster:
        driver = name or (ctx.meta["driver"].name if target is not None else known.driver)
        if not driver:
            raise click.UsageError("Name the driver: --driver, or driver in the file of --profile.")
        of_cluster = RealClusterSettings(
            subject=target or command or f"driver {driver}",
            driver=driver,
            profile=known,
            only=only,
            node=node or "",
            image=image,
        )
        starter = _starter(ctx, target, command, real=True) if here else None
        progress = report.TerminalProgress(click.echo, of_cluster.subject)
        judgement = _judge_in_cluster(of_cluster, progress, starter, kubeconfig, context)
    else:
        settings = runner.ConformanceSettings(
            subject=target or command or f"--socket-dir {socket_dir}",
            command=_starter(ctx, target, command),
            profile=known,
            only=only,
            socket_dir=socket_dir.absolute() if socket_dir is not None else None,
            cdi_dir=cdi_dir.absolute() if cdi_dir is not None else None,
            node=node or _NODE,
        )
        progress = report.TerminalProgress(click.echo, settings.subject)
        judgement = runner.judge(settings, progress)
    try:
        verdict = asyncio.run(judgement)
    except KeyboardInterrupt:
        verdict = progress.interrupted()
    if json_file is not None:
        json_file.write_text(json.dumps(report.to_json(verdict), indent=2) + "\n", encoding="utf-8")
    if junit_file is not None:
        junit_file.write_text(report.to_junit(verdict), encoding="utf-8")
    if html_file is not None:
        html_file.write_text(report.to_html(verdict), encoding="utf-8")
    for line in report.render_summary(verdict):
        click.echo(line)
    if verdict.interrupted:
        raise KeyboardInterrupt
    ctx.exit(0 if verdict.conforms else 1)


def _require_consistent(ctx: click.Context) -> None:
    """Check that the options of the command line belong together.

    Raises:
        click.UsageError: they do not.
    """
    given = {name for name in ctx.params if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE}
    target, command, socket_dir, name = (item in given for item in ("target", "command", "socket_dir", "name"))
    if "cdi_dir" in given and not socket_dir:
        raise click.UsageError("--cdi-dir requires --socket-dir.")
    if "cluster" not in given:
        if unused := [option for option in _OF_CLUSTER if (option if option != "driver" else "name") in given]:
            raise click.UsageError(f"--{unused[0]} requires --cluster.")
        if target + command + socket_dir != 1:
            raise click.UsageError("Name one driver: a TARGET, --command or --socket-dir.")
        return
    if socket_dir:
        raise click.UsageError("--cluster does not work with --socket-dir: the kubelet has its own directory.")
    if "here" in given:
        if target + command != 1:
            raise click.UsageError("--here requires one driver to start: a TARGET or --command.")
        if "context" in given:
            raise click.UsageError("--context does not work with --here: the driver has the kubeconfig's current one.")
        if "node" not in given:
            raise click.UsageError("--here requires --node: the name of this machine in the cluster.")
    elif command:
        raise click.UsageError("--command requires --here with --cluster: the driver is started on this machine.")
    if target and name:
        raise click.UsageError("Name one driver: a TARGET or --driver.")


async def _judge_in_cluster(
    settings: RealClusterSettings,
    progress: runner.RunProgress,
    starter: Callable[[SimulatedNode], DriverCommand] | None,
    kubeconfig: Path | None,
    context: str | None,
) -> runner.ConformanceReport:
    """Judge a driver in a cluster; with a starter, it runs on this machine meanwhile."""
    async with AsyncExitStack() as stack:
        client = Client(await credentials_of(kubeconfig, context), user_agent="dra-kit conformance", warnings=False)
        await stack.enter_async_context(client)
        if starter is not None:
            directory = stack.enter_context(sandbox_directory())
            places = SimulatedNode(
                node=settings.node,
                root=_KUBELET_DIR,
                cdi=_CDI_DIR,
                kubeconfig=_kubeconfig_file(kubeconfig),
                logs=directory,
                scratch=directory,
                nri=NRI_SOCKET,
                mark=mark_of(directory),
            )
            subject = DriverUnderTest(starter(places), places, settings.profile.environment)
            await subject.start()
            stack.push_async_callback(subject.stop)
            settings = replace(settings, last_output=subject.last_output)
        return await judge_in_cluster(client, settings, progress)


def _kubeconfig_file(given: Path | None) -> Path:
    """Return the kubeconfig that a driver on this machine gets.

    Raises:
        ConfigurationError: it is not one file.
    """
    file = given or Path(os.environ.get("KUBECONFIG") or "~/.kube/config").expanduser()
    if not file.is_file():
        raise ConfigurationError(f"kubeconfig {file} is not one file, which the driver needs; name one by --kubeconfig")
    return file.absolute()


def _starter(
    ctx: click.Context, target: str | None, command: str | None, *, real: bool = False
) -> Callable[[SimulatedNode], DriverCommand] | None:
    """Return what makes the command of the driver; None if others start it.

    ``real``: a TARGET does not get the settings of its project's sandbox, but only those of the command line.
    """
    if command is not None:
        [parsed] = parse_commands("command", [command], directory=Path.cwd())
        return lambda _: parsed
    if target is None:
        return None
    driver: Driver[Any, Any] = ctx.meta["driver"]
    given = ctx.meta.get("driver_settings", {})
    if real:
        command_here = command_of_target(target, _variables(author_settings(driver, given), given))
        return lambda _: command_here
    prepared = sandbox_driver(target, driver, given, 1)

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
    if not profile.device_classes and project is not None:
        profile = profile.model_copy(update={"device_classes": [*project.classes]})
    if profile.rbac is not None and not profile.rbac.manifests and profile.rbac.chart is None:
        rights = profile.rbac.model_copy(update={"chart": chart_directory()})
        profile = profile.model_copy(update={"rbac": rights})
    return profile
