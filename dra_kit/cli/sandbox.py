"""``dra-kit sandbox``."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem
from msgspec.structs import replace

from dra_kit.cli.app import CUT_OFF, INTERRUPTED
from dra_kit.cli.options import (
    LOG_LEVELS,
    ContainerRuntimes,
    NewFile,
    TargetCommand,
    complete_target,
    is_help,
    kubernetes_option,
    path,
    print_remaining,
    target_of,
    variable_option,
)
from dra_kit.cli.sandbox_drivers import (
    SET,
    VALUES,
    Loaded,
    chart_folders,
    driver_commands,
    given_settings,
    load_stories,
    load_targets,
    node_shapes,
    release_of_stories,
    sandbox_driver,
    shapes_with_stories,
)
from dra_kit.errors import ConfigurationError, DraKitError, TargetError
from dra_kit.kubernetes.release import DEFAULT, OLDEST, Release
from dra_kit.process import logging as process_logging
from dra_kit.sandbox.containers.images import parse_image
from dra_kit.sandbox.drivers.project import enclosing_project, project_of
from dra_kit.sandbox.views.entries import EntryPrinter
from dra_kit.text import did_you_mean

if TYPE_CHECKING:
    import asyncio

    from dra_kit.sandbox.cluster import Sandbox, SandboxSettings
    from dra_kit.sandbox.dev.session import DevSession
    from dra_kit.sandbox.drivers.commands import DriverCommand
    from dra_kit.sandbox.run.session import SandboxSession
    from dra_kit.sandbox.views.live import LiveView


COMMANDS: Final = {
    "down": "down",
    "env": "env",
    "list": "list_command",
    "logs": "logs",
    "schema": "schema_command",
}
"""Subcommands, with their functions in sandbox_commands; a TARGET of the same name is written ``./down``."""
HERE: Final = "."


class SandboxCommand(TargetCommand):
    """Accepts a subcommand instead of TARGETs."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Return the context of the subcommand, if one is named."""
        target = target_of(self.params, args)
        if target in COMMANDS:
            from dra_kit.cli import sandbox_commands

            args.remove(target)
            command: click.Command = getattr(sandbox_commands, COMMANDS[target])
            return command.make_context(f"{info_name} {target}", args, parent, **extra)
        try:
            with _announced():
                return super().make_context(info_name, args, parent, **extra)
        except TargetError as error:
            hint = did_you_mean(target, COMMANDS)
            if not hint or Path(str(target)).exists():
                raise
            raise TargetError(f"{error}{hint}", code=error.code) from None

    def invoke(self, ctx: click.Context) -> Any:
        """Run; in the background, report errors to the process that started this one."""
        with _announced():
            return super().invoke(ctx)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Store the arguments for a sandbox in the background; the default TARGET is the project in this folder."""
        ctx.meta["arguments"] = list(args)
        named = target_of(self.params, args) is not None or any(word.partition("=")[0] == "--from" for word in args)
        if not named and not is_help(args) and is_project_here():
            args = [HERE, *args]
        printer = ctx.meta["printer"] = EntryPrinter(sys.stdout)

        def loading(target: str) -> None:
            if "--detach" not in args and not is_help(args):
                printer.entry(f"loading {'the driver of this project' if target == HERE else target}")

        if not ctx.resilient_parsing:
            ctx.meta["drivers"], ctx.meta["driver_options"] = load_targets(self.params, args, loading)
        return click.Command.parse_args(self, ctx, args)


@contextmanager
def _announced() -> Iterator[None]:
    """Report an error to the process that started this one in the background."""
    try:
        yield
    except DraKitError as error:
        from dra_kit.sandbox.run.detached import report_failure

        report_failure(error)
        raise


def is_project_here() -> bool:
    """Return whether the working directory is a project with a driver."""
    project = project_of(HERE)
    return project is not None and bool(project.driver[0])


def _complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete a subcommand, which must be the first argument, or a TARGET."""
    words = [word for word in COMMANDS if incomplete and word.startswith(incomplete) and not ctx.params.get("targets")]
    if not words:
        return complete_target(ctx, param, incomplete)
    return [CompletionItem(word) for word in (*words, *sorted(path.name for path in Path().glob(f"{incomplete}*")))]


@click.command(cls=SandboxCommand)
@click.argument("targets", nargs=-1, metavar="[TARGET]...", shell_complete=_complete)
@click.option(
    "-f",
    "--filename",
    "files",
    multiple=True,
    type=path(exists=True),
    help="file or folder of manifests to apply; may be repeated",
)
@click.option(
    "--story",
    "stories",
    multiple=True,
    type=path(exists=True, file_okay=False),
    help="folder of one story or several to run; may be repeated",
)
@click.option(
    "--from",
    "saved",
    type=path(exists=True),
    help="begin with a copy of a saved cluster, the output of 'dra-kit snapshot': pods that wait are scheduled, and -f "
    "changes the copy; its nodes run nothing",
)
@click.option(
    "--nodes",
    default=1,
    show_default=True,
    type=click.IntRange(1, 100),
    help="number of nodes; {node} in a setting of the driver is replaced by the node's name",
)
@click.option(
    "--node-capacity",
    "capacity",
    multiple=True,
    metavar="[NODE:]RESOURCE=QUANTITY[,...]",
    help="capacity of all nodes or one, instead of this machine's: cpu=8,memory=32Gi; may be repeated",
)
@click.option(
    "--node-labels",
    "labels",
    multiple=True,
    metavar="[NODE:]KEY=VALUE[,...]",
    help="labels of all nodes or one; may be repeated",
)
@click.option(
    "--plugin",
    "plugins",
    multiple=True,
    metavar="CMD",
    help="run a driver in any language on each node: 'CMD --node-name {node} --kubeconfig {kubeconfig}'; "
    "placeholders: {node} {kubelet} {plugins} {registry} {cdi} {nri} {sysfs} {kubeconfig} {port}; may be repeated",
)
@click.option(
    "--controller",
    "controllers",
    multiple=True,
    metavar="CMD",
    help="run a driver's controller: 'CMD --kubeconfig {kubeconfig}'; may be repeated",
)
@click.option(
    "--webhook",
    "webhooks",
    multiple=True,
    metavar="[SERVICE=]CMD",
    help="run a driver's webhook: 'CMD --port {port} --tls-cert-file {cert} --tls-private-key-file {key}'; the API "
    "server calls it in place of the Service of webhook configurations; may be repeated",
)
@click.option(
    "--chart",
    "charts",
    multiple=True,
    type=path(exists=True, file_okay=False),
    help="install a helm chart, in a namespace with its name, and run the commands of its pods here; may be repeated",
)
@click.option(
    VALUES,
    "chart_values",
    multiple=True,
    type=path(exists=True, dir_okay=False),
    help="file of values for the --chart before it; may be repeated",
)
@click.option(
    "--image",
    "images",
    multiple=True,
    metavar="NAME=DIR",
    help="folder with the files of an image at their paths, and its Entrypoint in .image.json; may be repeated",
)
@click.option(
    SET,
    "values",
    multiple=True,
    metavar="[DRIVER.]NAME=VALUE",
    help="setting of a driver, if several drivers have a setting of that name; may be repeated",
)
@click.option("--report", type=NewFile(), help="write the result of every pod to this file, as JSON")
@click.option("--record", type=NewFile(), help="write all events to this file, for 'dra-kit replay'")
@click.option(
    "--timeout",
    default=60.0,
    show_default=True,
    type=click.FloatRange(min=0.1),
    help="seconds for the pods of -f, and for each step of a story",
)
@click.option("--keep", is_flag=True, help="keep everything running at the end, until Ctrl-C")
@click.option("--ui", is_flag=True, help="serve a page that shows devices, pods and events, until Ctrl-C")
@click.option(
    "--ui-port",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    help="port of the page; implies --ui  [default: a free one]",
)
@click.option("--detach", is_flag=True, help="run in the background; 'dra-kit sandbox down' stops it")
@click.option("--kubeconfig", type=NewFile(), help="write the cluster's kubeconfig to this file")
@kubernetes_option(
    f"simulate this release, from {OLDEST}  [default: with --from that of the saved cluster, else that of the stories, "
    f"else {DEFAULT}]"
)
@click.option("--alpha", is_flag=True, help="switch on the alpha features of resource.k8s.io, and serve v1alpha3")
@click.option(
    "--feature-gates",
    default="",
    metavar="NAME=BOOL[,...]",
    help="switch individual features of resource.k8s.io on or off",
)
@click.option(
    "--runtime-config",
    default="",
    metavar="GROUP/VERSION=BOOL[,...]",
    help="serve API versions that are off by default, such as resource.k8s.io/v1beta1=true",
)
@click.option(
    "--network-namespaces/--no-network-namespaces",
    default=None,
    help="give pods network namespaces, for hooks that move interfaces; the default on nodes with namespaces that run "
    "no TARGET; elsewhere, only root can create them",
)
@click.option(
    "--containers",
    default="process",
    show_default=True,
    type=ContainerRuntimes(),
    help="run containers as processes, or have podman run them in their images",
)
@click.option(
    "--node-namespaces/--no-node-namespaces",
    default=None,
    help="give each node its own mounts and network, in which its containers run; the default with --plugin, --chart "
    "and --node-files, where this machine allows it",
)
@click.option(
    "--node-files",
    multiple=True,
    metavar="[NODE:]PATH=DIR",
    help="files that programs on all nodes or one see at PATH, such as /sys=fixtures/sys; may be repeated",
)
@click.option(
    "--time-scale",
    default=1.0,
    show_default=True,
    type=click.FloatRange(min=0.01),
    help="divide the delays of Kubernetes by this factor: retries, back-offs, grace periods",
)
@click.option(
    "--no-webhook",
    "webhook",
    is_flag=True,
    flag_value=False,
    default=True,
    help="do not run the driver's webhook, which rejects invalid opaque configuration when it is applied",
)
@variable_option(
    "--log-level",
    default="error",
    envvar="DRA_LOG_LEVEL",
    type=click.Choice(LOG_LEVELS),
    help="minimum level of the driver's log that is shown",
)
@click.pass_context
def sandbox(ctx: click.Context, /, targets: tuple[str, ...], **options: Any) -> None:  # fmt: skip
    """Run TARGET in a Kubernetes cluster in this process, and show what happens.

    TARGET is module:attr, ./file.py, a file of globs of device nodes (.yaml), or a folder with a pyproject.toml, whose
    deviceclasses.yaml is applied first. The default is the project in this folder. Without a project, the cluster has
    no driver; "dra-kit sandbox env" prints the environment of a driver that you start manually. Containers run as local
    processes, with their volumes where this machine allows mounts. No image is pulled.

    Drivers in any language run as programs with --plugin, or as their own helm chart with --chart. Several TARGETs,
    programs and charts are several drivers on every node. Settings of a driver are flags of this command. If several
    drivers have a setting of the same name, use --set DRIVER.NAME=VALUE.

    With --from, the cluster begins with the objects of a saved one, on whose nodes nothing runs. Exit code 0: all pods
    that wait, of the saved cluster and of -f, have a place; 1: one has none.

    Exit code 0: every pod of -f succeeded, or is ready if it never exits, and every story passed; 1: a pod or a story
    failed, or a program or chart never registered its driver; 2: the driver or a manifest is invalid. With neither -f
    nor --story, everything runs until Ctrl-C.

    \b
      dra-kit sandbox ./pizza.py -f claim.yaml -f pod.yaml
      dra-kit sandbox . --story stories/order-by-claim
      dra-kit sandbox ./gpu.py ./nic.py -f pod.yaml
      dra-kit sandbox . --detach --kubeconfig /tmp/kubeconfig
      dra-kit sandbox --plugin 'go-driver --node-name {node} --cdi-root {cdi}' -f pod.yaml
      dra-kit sandbox --chart deployments/helm/driver --image registry.example/driver=./image -f pod.yaml
      dra-kit sandbox --from production.tar.gz -f remedy.yaml
      dra-kit sandbox list
      dra-kit sandbox env
      dra-kit sandbox down
    """  # noqa: D301 - click's mark for a paragraph that is not wrapped
    if options["kubeconfig"] is not None:
        require_unused(options["kubeconfig"])
    loaded: list[Loaded] = ctx.meta["drivers"]
    if options["stories"] and not (loaded or options["plugins"] or options["charts"]):
        raise click.UsageError("--story requires a driver, which the story tests: a TARGET, --plugin or --chart.")
    if options["chart_values"] and not options["charts"]:
        raise click.UsageError(f"{VALUES} requires --chart before it.")
    for target in targets:
        _unused_project_hint(target)
    if options["detach"]:
        _detach(ctx, options)
        return
    printer: EntryPrinter = ctx.meta["printer"]
    commands, charts = driver_commands(options), chart_folders(ctx.meta["arguments"])
    named = [*(driver.name for _, driver in loaded), *(command.name for command in commands)]
    named += [folder.absolute().name for folder, _ in charts]
    printer.entry(f"starting a cluster in this process, {_with_drivers(named)}")
    import asyncio  # print the line before the slow imports

    from dra_kit.sandbox.run.detached import bounded_log, report_remaining
    from dra_kit.sandbox.views.live import LiveView

    show_log(options["log_level"])
    view = LiveView(printer)
    session = _session(ctx, options, view, commands, charts)
    with bounded_log():
        code = asyncio.run(run_interruptibly(session, view.cut_off))
    report_remaining(session.remaining)
    ctx.exit(code)


def show_log(level: str) -> None:
    """Show log records from this level on; the sandbox reads those from INFO on."""
    shown = logging.getLevelNamesMapping()[level.upper()]
    process_logging.configure("text", min(shown, logging.INFO))
    for handler in logging.getLogger().handlers:
        handler.setLevel(shown)


def _with_drivers(names: Sequence[str]) -> str:
    if not names:
        return "without a driver"
    return f"with driver{'s' if len(names) > 1 else ''} {' and '.join(names)}"


def require_unused(kubeconfig: Path) -> None:
    """Check that the kubeconfig is not that of a sandbox in the background."""
    from dra_kit.cli.sandbox_commands import stop_command
    from dra_kit.sandbox.run.detached import running_in_background

    for sandbox in running_in_background():
        if sandbox.has_kubeconfig(kubeconfig):
            raise ConfigurationError(
                f"--kubeconfig {kubeconfig} is in use by the sandbox of {sandbox.title} in the background, process "
                f"{sandbox.pid}; use another path, or stop that sandbox: {stop_command(sandbox)}"
            )


def _detach(ctx: click.Context, options: Mapping[str, Any]) -> None:
    from dra_kit.cli.sandbox_commands import print_usage
    from dra_kit.sandbox.run.detached import detach

    if options["stories"]:
        raise click.UsageError("--detach cannot be combined with --story: the results would not be shown.")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # clean up when terminated
    sandbox = detach([word for word in ctx.meta["arguments"] if word != "--detach"])
    who = f"{sandbox.title} {'run' if len(sandbox.drivers) > 1 else 'runs'} in a cluster"
    what = who if sandbox.drivers else "a cluster without a driver runs"
    click.echo(f"{what} in the background, process {sandbox.pid}")
    if sandbox.page:
        click.echo(f"  {sandbox.page}   shows it in a browser")
    print_usage(sandbox)


def _unused_project_hint(target: str) -> None:
    """Print a hint if the TARGET is in a project whose settings are not used."""
    project = enclosing_project(target)
    if project is not None and project.has_more_than_a_driver():
        named = ":".join(project.driver)
        click.echo(
            f"hint: {target} is not {named}, the driver of {project.file}: the settings and device classes of that "
            "project are not used",
            err=True,
        )


def _session(
    ctx: click.Context,
    options: Mapping[str, Any],
    view: LiveView,
    commands: tuple[DriverCommand, ...],
    charts: tuple[tuple[Path, tuple[Path, ...]], ...],
) -> SandboxSession:
    from dra_kit.sandbox.run.detached import is_detached, leave_record, report_ready
    from dra_kit.sandbox.run.session import RunTask, SandboxSession, with_copy

    stories = load_stories(options["stories"])
    loaded: list[Loaded] = ctx.meta["drivers"]
    given = given_settings(ctx, [driver for _, driver in loaded], options["values"])
    replaced = any(story.replaces for story in stories)
    given_release = options["kubernetes"]
    settings = sandbox_settings({**options, "kubernetes": release_of_stories(given_release, stories)})
    if options["saved"] is not None:
        settings = with_copy(
            settings, options["saved"], options["feature_gates"], version=given_release, alpha=options["alpha"]
        )
        release_of_stories(settings.release.version, stories, where="the saved cluster has")
        if not (loaded or commands or charts) and ctx.get_parameter_source("nodes") is ParameterSource.DEFAULT:
            settings = replace(settings, nodes=0)  # nothing would run there

    def ready(sandbox: Sandbox) -> None:
        leave_record(sandbox)
        report_ready([*sandbox.drivers, *sandbox.programs], sandbox.kubeconfig, session.page)

    session = SandboxSession(
        [
            sandbox_driver(target, driver, given[driver.name], settings.nodes, replaced=replaced)
            for target, driver in loaded
        ],
        replace(
            settings,
            edited=tuple(sorted({name for story in stories for name in story.edited})),
            commands=commands,
            images=tuple(map(parse_image, options["images"])),
            shapes=shapes_with_stories(settings.shapes, stories),
        ),
        RunTask(
            files=options["files"],
            stories=stories,
            timeout=options["timeout"],
            keep=options["keep"] or is_detached() or page_port(options) is not None,
            report=options["report"],
            record=options["record"],
            charts=charts,
            page=page_port(options),
        ),
        view,
        ready=ready,
    )
    return session


def page_port(options: Mapping[str, Any]) -> int | None:
    """Return the port of the page, 0 for a free one; None for no page."""
    port: int | None = options["ui_port"]
    return 0 if port is None and options["ui"] else port


def sandbox_settings(options: Mapping[str, Any]) -> SandboxSettings:
    """Return the settings of the cluster from the options that ``dra-kit dev`` has as well: ``_SHARED`` in cli/dev.py.

    Raises:
        ConfigurationError: a feature gate or an API version is unknown, or its value is invalid.
    """
    from dra_kit.apiserver.api import ALPHA_VERSIONS, RuntimeConfig
    from dra_kit.sandbox.cluster import SandboxSettings

    version = options["kubernetes"] or DEFAULT
    release = Release.alpha(version) if options["alpha"] else Release.of(version)
    if options.get("saved") is None:  # otherwise, the gates are those of the saved cluster
        try:
            release = release.switched(options["feature_gates"])
        except ValueError as error:
            raise ConfigurationError(f"--feature-gates: {error}") from None
    try:
        alpha = f"{ALPHA_VERSIONS}," if options["alpha"] else ""
        runtime_config = RuntimeConfig.parse(f"{alpha}{options['runtime_config']}")
    except ValueError as error:
        raise ConfigurationError(f"--runtime-config: {error}") from None
    if missing := runtime_config.switched_off():
        raise ConfigurationError(
            f"--runtime-config switches off {', '.join(missing)}: the sandbox uses all versions that are on by "
            "default; switch off others only"
        )
    return SandboxSettings(
        nodes=options["nodes"],
        release=release,
        runtime_config=runtime_config,
        time_scale=options["time_scale"],
        kubeconfig=options["kubeconfig"],
        webhook=options["webhook"],
        network_namespaces=options["network_namespaces"],
        shapes=node_shapes(options["capacity"], options["labels"]),
        containers=options["containers"],
        node_namespaces=options["node_namespaces"],
        node_files=options["node_files"],
    )


_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


async def run_interruptibly(session: SandboxSession | DevSession, reader_gone: asyncio.Event) -> int:
    """Run until the session ends, a signal arrives, or the output is closed; a second signal kills the process."""
    import asyncio  # as above: the command line does not need it

    loop = asyncio.get_running_loop()
    work = asyncio.ensure_future(session.run())
    cut_off = asyncio.ensure_future(reader_gone.wait())
    cut_off.add_done_callback(lambda _: work.cancel())
    interrupted = False

    def interrupt() -> None:
        nonlocal interrupted
        if interrupted:
            return  # the same signal, sent to the process and to its group
        interrupted = True
        click.echo("\nshutting down; press Ctrl-C again to stop immediately", err=True)
        work.cancel()
        loop.call_later(2.0, insist)

    def insist() -> None:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)

    for number in _SIGNALS:
        loop.add_signal_handler(number, interrupt)
    try:
        return await work
    except asyncio.CancelledError:
        if reader_gone.is_set():
            # writing the remaining buffer when the process exits would fail again
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return CUT_OFF
        click.echo("everything is stopped", err=True)
        return session.exit_code if session.lasting else INTERRUPTED
    finally:
        print_remaining(session.remaining)
