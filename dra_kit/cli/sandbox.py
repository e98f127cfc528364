"""``dra-kit sandbox``."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import click
from click.shell_completion import CompletionItem

from dra_kit.cli.app import INTERRUPTED
from dra_kit.cli.options import TargetCommand, complete_target, is_help, path, target_of
from dra_kit.cli.sandbox_drivers import SET, Loaded, given_settings, load_stories, load_targets, sandbox_driver
from dra_kit.errors import ConfigurationError, DraKitError, TargetError
from dra_kit.kubernetes.release import FeatureGates
from dra_kit.sandbox.drivers.project import enclosing_project, project_of
from dra_kit.sandbox.views.entries import EntryPrinter
from dra_kit.text import did_you_mean

if TYPE_CHECKING:
    import asyncio

    from dra_kit.sandbox.run.session import SandboxSession
    from dra_kit.sandbox.views.live import LiveView


COMMANDS: Final = {"down": "down", "env": "env", "list": "list_command", "schema": "schema_command"}
"""Words that are no TARGET, each with its command in sandbox_commands; a folder of such a name is ``./down``."""
_HERE: Final = "."


class SandboxCommand(TargetCommand):
    """Knows ``down``, ``env``, ``list`` and ``schema``, which are no TARGETs but commands of their own."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Return the context of another command where its name is given."""
        target = target_of(self.params, args)
        if target in COMMANDS:
            args.remove(target)
            return _command(target).make_context(f"{info_name} {target}", args, parent, **extra)
        try:
            with _announced():
                return super().make_context(info_name, args, parent, **extra)
        except TargetError as error:
            hint = did_you_mean(target, COMMANDS)
            if not hint or Path(str(target)).exists():
                raise
            raise TargetError(f"{error}{hint}", code=error.code) from None

    def invoke(self, ctx: click.Context) -> Any:
        """Run; in the background, whoever has started it learns of an error."""
        with _announced():
            return super().invoke(ctx)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keep the arguments as they came: a sandbox in the background gets them again.

        Without a TARGET it is the project here, if there is one.
        """
        ctx.meta["arguments"] = list(args)
        if target_of(self.params, args) is None and not is_help(args) and _is_project_here():
            args = [_HERE, *args]
        printer = ctx.meta["printer"] = EntryPrinter(sys.stdout)

        def loading(target: str) -> None:
            if "--detach" not in args and not is_help(args):
                printer.entry(f"loading {'the driver of this project' if target == _HERE else target}")

        if not ctx.resilient_parsing:
            ctx.meta["drivers"], ctx.meta["driver_options"] = load_targets(self.params, args, "--story", loading)
        return click.Command.parse_args(self, ctx, args)


def _command(name: str) -> click.Command:
    """Load the command of one of the words."""
    from dra_kit.cli import sandbox_commands

    command: click.Command = getattr(sandbox_commands, COMMANDS[name])
    return command


@contextmanager
def _announced() -> Iterator[None]:
    """Let whoever has started this process in the background know of an error."""
    try:
        yield
    except DraKitError as error:
        from dra_kit.sandbox.run.detached import report_failure

        report_failure(error)
        raise


def _is_project_here() -> bool:
    project = project_of(_HERE)
    return project is not None and bool(project.driver[0])


class NewFile(click.Path):
    """A file to be written, in a directory that is there."""

    def __init__(self) -> None:
        super().__init__(dir_okay=False, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path, if a file can be written there."""
        file: Path = super().convert(value, param, ctx)  # type: ignore[assignment]  # it is told path_type
        if not file.parent.is_dir():
            self.fail(f"there is no directory {file.parent}; make it, or name another.", param, ctx)
        if file.is_symlink() or (file.exists() and not file.is_file()):
            self.fail(f"{file} is no regular file; name one, or a path where nothing is.", param, ctx)
        if not os.access(file.parent, os.W_OK):  # it is written under another name, then renamed
            self.fail(f"{file} may not be written.", param, ctx)
        return file


def _complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete a command of its own, where it may stand, or a TARGET."""
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
    help="manifests to apply, a file or a folder; may be repeated",
)
@click.option(
    "--story",
    "stories",
    multiple=True,
    type=path(exists=True, file_okay=False),
    help="folder of a story, or of several, to run; may be repeated",
)
@click.option(
    "--nodes",
    default=1,
    show_default=True,
    type=click.IntRange(1, 100),
    help="nodes; {node} in a setting of the driver stands for the node's name",
)
@click.option(
    SET,
    "values",
    multiple=True,
    metavar="[DRIVER.]NAME=VALUE",
    help="a setting of a driver, where several drivers have one of that name; may be repeated",
)
@click.option("--report", type=NewFile(), help="write what became of every pod there, as JSON")
@click.option("--timeline", type=NewFile(), help="keep what happens there, a JSON record on each line")
@click.option(
    "--timeout",
    default=60.0,
    show_default=True,
    type=click.FloatRange(min=0.1),
    help="seconds for the pods of -f, and for each step of a story",
)
@click.option("--keep", is_flag=True, help="leave everything running in the end, until Ctrl-C")
@click.option("--detach", is_flag=True, help="run in the background; 'dra-kit sandbox down' ends it")
@click.option("--kubeconfig", type=NewFile(), help="write the cluster's kubeconfig there")
@click.option("--alpha", is_flag=True, help="switch on the alpha features of resource.k8s.io")
@click.option(
    "--feature-gates",
    default="",
    metavar="NAME=BOOL[,...]",
    help="switch single features of resource.k8s.io on or off",
)
@click.option(
    "--time-scale",
    default=1.0,
    show_default=True,
    type=click.FloatRange(min=0.01),
    help="divide the waits of Kubernetes by this: retries, back-offs, grace periods",
)
@click.option(
    "--webhook/--no-webhook",
    default=True,
    show_default=True,
    help="have the driver's webhook refuse bad opaque configuration when it is applied",
)
@click.option(
    "--log-level",
    default="error",
    show_default=True,
    envvar="DRA_LOG_LEVEL",
    show_envvar=True,
    type=click.Choice(["debug", "info", "warning", "error"]),
    help="least level of the driver's log shown",
)
@click.pass_context
def sandbox(ctx: click.Context, /, targets: tuple[str, ...], **options: Any) -> None:  # fmt: skip
    """Run TARGET in a Kubernetes cluster that lives in this one process, and show what happens.

    TARGET is module:attr, ./file.py, a file of globs of device nodes (.yaml), or a folder with a pyproject.toml, whose
    deviceclasses.yaml is applied first. Without one it is the project in this folder; where there is none the cluster
    has no driver, and "dra-kit sandbox env" prints what one needs that is started by hand. Containers run as local
    processes: no image is pulled, no mount is made.

    Several TARGETs are several drivers on every node. A flag is a setting of the driver that has it; one that several
    have is given by --set DRIVER.NAME=VALUE.

    Exit code 0: every pod of -f ended with 0, or is ready if it is not to end; every story was true. 1: not so. 2: the
    driver or a manifest cannot be used. With neither -f nor --story everything runs until Ctrl-C.

    \b
      dra-kit sandbox ./pizza.py -f claim.yaml -f pod.yaml
      dra-kit sandbox . --story stories/order-by-claim
      dra-kit sandbox ./gpu.py ./nic.py -f pod.yaml
      dra-kit sandbox . --detach --kubeconfig /tmp/kubeconfig
      dra-kit sandbox list
      dra-kit sandbox env
      dra-kit sandbox down
    """  # noqa: D301 - click's mark for a paragraph that is not wrapped
    if options["kubeconfig"] is not None:
        require_unused(options["kubeconfig"])
    loaded: list[Loaded] = ctx.meta["drivers"]
    if not loaded and options["stories"]:
        raise click.UsageError("--story needs a TARGET: a story tells what a driver does.")
    for target in targets:
        _unused_project_hint(target)
    if options["detach"]:
        _detach(ctx, options)
        return
    printer: EntryPrinter = ctx.meta["printer"]
    printer.entry(f"a cluster in this process starts, {_with_drivers([driver.name for _, driver in loaded])}")
    import asyncio  # what a cluster is made of takes long to import: the line comes before

    from dra_kit.process import logging as process_logging
    from dra_kit.sandbox.run.detached import bounded_log
    from dra_kit.sandbox.views.live import LiveView

    shown = logging.getLevelNamesMapping()[options["log_level"].upper()]
    process_logging.configure("text", min(shown, logging.INFO))  # the sandbox looks at more than is shown
    for handler in logging.getLogger().handlers:
        handler.setLevel(shown)
    view = LiveView(printer)
    with bounded_log():
        code = asyncio.run(run_interruptibly(_session(ctx, options, view), view.cut_off))
    ctx.exit(code)


def _with_drivers(names: Sequence[str]) -> str:
    if not names:
        return "without a driver"
    return f"with driver{'s' if len(names) > 1 else ''} {' and '.join(names)}"


def require_unused(kubeconfig: Path) -> None:
    """Refuse the kubeconfig of a sandbox in the background.

    Raises:
        ConfigurationError: it is that.
    """
    from dra_kit.cli.sandbox_commands import stop_command
    from dra_kit.sandbox.run.detached import running_in_background

    for sandbox in running_in_background():
        if sandbox.has_kubeconfig(kubeconfig):
            raise ConfigurationError(
                f"--kubeconfig {kubeconfig} is that of the sandbox of {sandbox.title} in the background, process "
                f"{sandbox.pid}; name another, or end that one: {stop_command(sandbox)}"
            )


def _detach(ctx: click.Context, options: Mapping[str, Any]) -> None:
    from dra_kit.cli.sandbox_commands import usage_lines
    from dra_kit.sandbox.run.detached import detach

    if options["stories"]:
        raise click.UsageError("--detach and --story do not go together: nobody would see the story.")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # else it would leave behind what it started
    sandbox = detach([word for word in ctx.meta["arguments"] if word != "--detach"])
    who = f"{sandbox.title} {'run' if len(sandbox.drivers) > 1 else 'runs'} in a cluster"
    what = who if sandbox.drivers else "a cluster without a driver runs"
    click.echo(f"{what} in the background, process {sandbox.pid}")
    for line in usage_lines(sandbox):
        click.echo(f"  {line}")


def _unused_project_hint(target: str) -> None:
    """Print a hint at a project that is not used, although the TARGET lies in it."""
    project = enclosing_project(target)
    if project is not None and project.has_more_than_a_driver():
        named = ":".join(project.driver)
        click.echo(
            f"hint: {target} is not {named}, the driver of {project.file}: the settings and device classes of that "
            "project are not used",
            err=True,
        )


def _session(ctx: click.Context, options: Mapping[str, Any], view: LiveView) -> SandboxSession:
    from dra_kit.sandbox.cluster import Sandbox, SandboxSettings
    from dra_kit.sandbox.run.detached import is_detached, leave_record, report_ready
    from dra_kit.sandbox.run.session import RunTask, SandboxSession

    stories = load_stories(options["stories"])
    loaded: list[Loaded] = ctx.meta["drivers"]
    given = given_settings(ctx, [driver for _, driver in loaded], options["values"])
    replaced = any(story.replaces for story in stories)

    def ready(sandbox: Sandbox) -> None:
        leave_record(sandbox)
        report_ready(sandbox.drivers, sandbox.kubeconfig)

    return SandboxSession(
        [
            sandbox_driver(target, driver, given[driver.name], options["nodes"], replaced=replaced)
            for target, driver in loaded
        ],
        SandboxSettings(
            nodes=options["nodes"],
            gates=feature_gates(options["feature_gates"], alpha=options["alpha"]),
            time_scale=options["time_scale"],
            kubeconfig=options["kubeconfig"],
            webhook=options["webhook"],
            edited=tuple(sorted({name for story in stories for name in story.edited})),
        ),
        RunTask(
            files=options["files"],
            stories=stories,
            timeout=options["timeout"],
            keep=options["keep"] or is_detached(),
            report=options["report"],
            timeline=options["timeline"],
        ),
        view,
        ready=ready,
    )


def feature_gates(flags: str, *, alpha: bool) -> FeatureGates:
    """Return the gates by ``--feature-gates`` and ``--alpha``.

    Raises:
        ConfigurationError: there is no such gate, or its value is wrong.
    """
    from dra_kit.kubernetes.release import FeatureGates

    try:
        return (FeatureGates.alpha() if alpha else FeatureGates.default()).switched(flags)
    except ValueError as error:
        raise ConfigurationError(f"--feature-gates: {error}") from None


_INSIST_SECONDS: Final = 2.0
_CUT_OFF: Final = 128 + signal.SIGPIPE
"""Exit code when nobody reads the output any more, as shells give it."""
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class InterruptibleRun(Protocol):
    """What Ctrl-C ends in order."""

    @property
    def lasting(self) -> bool:
        """Whether only an interruption is waited for."""
        ...

    @property
    def exit_code(self) -> int:
        """Of the process, where it is interrupted while it is lasting."""
        ...

    async def run(self) -> int:
        """Run; the exit code. Whatever happens, also a cancellation, nothing remains."""
        ...


async def run_interruptibly(session: InterruptibleRun, reader_gone: asyncio.Event) -> int:
    """Run until it is done or interrupted, or nobody reads on; the second signal ends the process at once.

    Args:
        session: to run.
        reader_gone: set when nobody reads the output any more.
    """
    import asyncio  # as above: no command line needs it

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
        click.echo("\ntaking everything down; once more ends at once", err=True)
        work.cancel()
        loop.call_later(_INSIST_SECONDS, insist)

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
            # what is still buffered would fail again at the end of the process
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return _CUT_OFF
        click.echo("everything is down", err=True)
        return session.exit_code if session.lasting else INTERRUPTED
