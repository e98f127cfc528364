"""``dra-kit sandbox``."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from dra_kit.cli.app import INTERRUPTED
from dra_kit.cli.driver_settings import author_settings
from dra_kit.cli.options import RoleCommand, path, target_of
from dra_kit.cli.sandbox_down import down, how_to_end, how_to_use
from dra_kit.cli.sandbox_list import list_command
from dra_kit.errors import ConfigurationError, TargetError
from dra_kit.process import logging as process_logging
from dra_kit.values.nearest import did_you_mean

if TYPE_CHECKING:
    from dra_kit.resource.gates import FeatureGates
    from dra_kit.sandbox.live import LiveView
    from dra_kit.sandbox.session import Session
    from dra_kit.sandbox.story import Story

COMMANDS: Final = {"down": down, "list": list_command}
"""Words that are no TARGET; a folder of such a name is ``./down``."""
_INSIST_SECONDS: Final = 2.0
_CUT_OFF: Final = 128 + signal.SIGPIPE
"""Exit code when nobody reads the output any more, as shells give it."""
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class SandboxCommand(RoleCommand):
    """Knows ``down`` and ``list``, which are no TARGETs but commands of their own."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """That of another command where it is meant."""
        target = target_of(self.params, args)
        if target in COMMANDS:
            args.remove(target)
            return COMMANDS[target].make_context(f"{info_name} {target}", args, parent, **extra)
        try:
            return super().make_context(info_name, args, parent, **extra)
        except TargetError as error:
            hint = did_you_mean(target, COMMANDS)
            if not hint or Path(str(target)).exists():
                raise
            raise TargetError(f"{error}{hint}", code=error.code) from None

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keep the arguments as they came: a sandbox in the background gets them again."""
        ctx.meta["arguments"] = list(args)
        return super().parse_args(ctx, args)


class NewFile(click.Path):
    """A file to be written, in a directory that is there."""

    def __init__(self) -> None:
        super().__init__(dir_okay=False, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path, if a file can be written there."""
        file: Path = super().convert(value, param, ctx)  # type: ignore[assignment]  # it is told path_type
        if not file.parent.is_dir():
            self.fail(f"there is no directory {file.parent}; make it, or name another.", param, ctx)
        if file.is_symlink() or (file.exists() and not file.is_file()):
            self.fail(f"{file} is no regular file; name one, or a path where nothing is.", param, ctx)
        if not os.access(file.parent, os.W_OK):  # it is written under another name, then renamed
            self.fail(f"{file} may not be written.", param, ctx)
        return file


@click.command(cls=SandboxCommand)
@click.argument("target")
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
@click.option("--report", type=NewFile(), help="write what became of every pod there, as JSON")
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
def command(ctx: click.Context, /, target: str, **options: Any) -> None:  # fmt: skip
    """Run TARGET in a Kubernetes cluster that lives in this one process, and show what happens.

    TARGET is module:attr, ./file.py or a folder with a pyproject.toml, whose deviceclasses.yaml is applied first.
    Containers run as local processes: no image is pulled, no mount is made.

    Exit code 0: every pod of -f ended with 0, or is ready if it is not to end; every story was true. 1: not so. 2: the
    driver or a manifest cannot be used. With neither -f nor --story everything runs until Ctrl-C.

    \b
      dra-kit sandbox ./pizza.py -f claim.yaml -f pod.yaml
      dra-kit sandbox . --story stories/order-by-claim
      dra-kit sandbox . --detach --kubeconfig /tmp/kubeconfig
      dra-kit sandbox list
      dra-kit sandbox down
    """  # noqa: D301 - click's mark for a paragraph that is not wrapped
    if options["kubeconfig"] is not None:
        _require_unused(options["kubeconfig"])
    _hint(target)
    if options["detach"]:
        _detach(ctx, options)
        return
    from dra_kit.sandbox.detached import bounded_log
    from dra_kit.sandbox.live import LiveView

    shown = logging.getLevelNamesMapping()[options["log_level"].upper()]
    process_logging.configure("text", min(shown, logging.INFO))  # the sandbox looks at more than is shown
    for handler in logging.getLogger().handlers:
        handler.setLevel(shown)
    view = LiveView(sys.stdout)
    with bounded_log():
        code = asyncio.run(_run(_session(ctx, target, options, view), view))
    ctx.exit(code)


def _require_unused(kubeconfig: Path) -> None:
    from dra_kit.sandbox.detached import running

    for sandbox in running():
        if sandbox.has_kubeconfig(kubeconfig):
            raise ConfigurationError(
                f"--kubeconfig {kubeconfig} is that of the sandbox of {sandbox.driver} in the background, process "
                f"{sandbox.pid}; name another, or end that one: {how_to_end(sandbox)}"
            )


def _detach(ctx: click.Context, options: Mapping[str, Any]) -> None:
    from dra_kit.sandbox.detached import detach

    if options["stories"]:
        raise click.UsageError("--detach and --story do not go together: nobody would see the story.")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # else it would leave behind what it started
    sandbox = detach([word for word in ctx.meta["arguments"] if word != "--detach"])
    click.echo(f"{sandbox.driver} runs in a cluster in the background, process {sandbox.pid}")
    for line in how_to_use(sandbox):
        click.echo(f"  {line}")


def _hint(target: str) -> None:
    """A project that is not taken, although the TARGET lies in it."""
    from dra_kit.sandbox.project import other_project

    project = other_project(target)
    if project is not None and project.has_more_than_a_driver():
        named = ":".join(project.driver)
        click.echo(
            f"hint: {target} is not {named}, the driver of {project.file}: the settings and device classes of that "
            "project are not used",
            err=True,
        )


def _session(ctx: click.Context, target: str, options: Mapping[str, Any], view: LiveView) -> Session:
    from dra_kit.process.target import load_drivers
    from dra_kit.sandbox.cluster import Sandbox, SandboxSettings
    from dra_kit.sandbox.detached import announce, is_detached
    from dra_kit.sandbox.drivers import SandboxDriver, device_classes, project_settings
    from dra_kit.sandbox.session import Session, Task

    stories = _stories(options["stories"])
    nodes = options["nodes"]
    # the first one was loaded to know its options
    drivers = (ctx.meta["driver"],) if nodes == 1 else tuple(load_drivers(target, nodes))
    values = {**project_settings(target, drivers[0]), **ctx.meta.get("driver_settings", {})}

    def ready(sandbox: Sandbox) -> None:
        announce(sandbox.driver, sandbox.kubeconfig)

    return Session(
        SandboxDriver(drivers, lambda placed: author_settings(drivers[0], placed), device_classes(target), values),
        SandboxSettings(
            nodes=nodes,
            gates=_gates(options["feature_gates"], alpha=options["alpha"]),
            time_scale=options["time_scale"],
            kubeconfig=options["kubeconfig"],
            webhook=options["webhook"],
            edited=tuple(sorted({name for story in stories for step in story.steps for name in step.edits})),
        ),
        Task(
            files=options["files"],
            stories=stories,
            timeout=options["timeout"],
            keep=options["keep"] or is_detached(),
            report=options["report"],
        ),
        view,
        ready=ready,
    )


def _gates(flags: str, *, alpha: bool) -> FeatureGates:
    from dra_kit.resource.gates import FeatureGates

    try:
        return (FeatureGates.alpha() if alpha else FeatureGates.default()).switched(flags)
    except ValueError as error:
        raise ConfigurationError(f"--feature-gates: {error}") from None


def _stories(paths: Sequence[Path]) -> tuple[Story, ...]:
    from dra_kit.sandbox.story import EXPECT_FILE, find_stories, load_story

    found: list[Path] = []
    for folder in paths:
        several = [folder] if (folder / EXPECT_FILE).exists() else list(find_stories(folder))
        if not several:
            raise ConfigurationError(f"--story {folder}: neither it nor a folder in it has an {EXPECT_FILE}")
        found += several
    return tuple(map(load_story, found))


async def _run(session: Session, view: LiveView) -> int:
    """Run until it is done or interrupted, or nobody reads on; the second signal ends the process at once."""
    loop = asyncio.get_running_loop()
    work = asyncio.ensure_future(session.run())
    cut_off = asyncio.ensure_future(view.cut_off.wait())
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
        if view.cut_off.is_set():
            # what is still buffered would fail again at the end of the process
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return _CUT_OFF
        click.echo("everything is down", err=True)
        return session.exit_code if session.lasting else INTERRUPTED
