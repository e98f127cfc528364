"""Subcommands of ``dra-kit sandbox``: down, env, list, logs, schema."""

from __future__ import annotations

import json
import shlex
import time
from pathlib import Path
from typing import Final

import click

from dra_kit.cli.options import path, print_remaining
from dra_kit.errors import SandboxError
from dra_kit.sandbox.directory import remove_abandoned
from dra_kit.sandbox.drivers.command_processes import read_logs
from dra_kit.sandbox.run.detached import DetachedSandbox, RunningSandbox, running_in_background, running_sandboxes, stop
from dra_kit.sandbox.stories.model import story_schema
from dra_kit.sandbox.timeline.recording import timeline_schema
from dra_kit.text import did_you_mean, escape_unprintable

_FOLLOW_SECONDS: Final = 0.3


@click.command
@click.option("--kubeconfig", type=path(dir_okay=False), help="use the sandbox with this kubeconfig")
@click.option("--node", help="use this node  [default: the only one]")
@click.option("--json", "as_json", is_flag=True, help="print a JSON object instead of shell commands")
def env(kubeconfig: Path | None, node: str | None, *, as_json: bool) -> None:
    """Print the environment of a driver in any language that you start manually, as export commands for a shell.

    The variables contain the kubeconfig of a running sandbox, the name of a node, and the directories of the node.
    Their names are those that Kubernetes' own drivers read, and those of dra-kit node. If several sandboxes run, use
    --kubeconfig.

    Exit code 0: the variables are printed; 2: no sandbox runs, or the choice is ambiguous.

    \b
      eval "$(dra-kit sandbox env)"
      dra-kit sandbox env --node node-2 --json
    """  # noqa: D301 - click's mark for a paragraph that is not wrapped
    sandbox = _sandbox(kubeconfig)
    variables = sandbox.nodes[_node(sandbox, node)]
    if as_json:
        click.echo(json.dumps(variables, indent=2))
        return
    for name, value in variables.items():
        click.echo(f"export {name}={shlex.quote(value)}")


def _sandbox(kubeconfig: Path | None) -> RunningSandbox:
    found = [item for item in running_sandboxes() if kubeconfig is None or item.has_kubeconfig(kubeconfig)]
    if not found:
        which = f" with kubeconfig {kubeconfig}" if kubeconfig else ""
        raise SandboxError(
            f"no sandbox{which} is running, or it is still starting; start one with dra-kit sandbox, in another shell "
            "or with --detach"
        )
    if len(found) > 1:
        for item in found:
            click.echo(f"{item.title}\n  dra-kit sandbox env --kubeconfig {shlex.quote(item.kubeconfig)}", err=True)
        raise SandboxError(f"{len(found)} sandboxes are running; choose one with --kubeconfig")
    return found[0]


def _node(sandbox: RunningSandbox, wanted: str | None) -> str:
    names = list(sandbox.nodes)
    if wanted is None and len(names) == 1:
        return names[0]
    if wanted is None:
        raise SandboxError(f"the sandbox has {len(names)} nodes; choose one with --node: {', '.join(names)}")
    if wanted not in sandbox.nodes:
        raise SandboxError(
            f"--node {wanted}: the sandbox has no such node{did_you_mean(wanted, names)}; it has {', '.join(names)}"
        )
    return wanted


def stop_command(sandbox: DetachedSandbox) -> str:
    """Return the command that stops this sandbox only."""
    return f"dra-kit sandbox down --kubeconfig {shlex.quote(sandbox.kubeconfig)}"


def print_usage(sandbox: DetachedSandbox) -> None:
    """Print the commands that inspect this sandbox, read its output, and stop it."""
    click.echo(f"  kubectl --kubeconfig {shlex.quote(sandbox.kubeconfig)} get resourceslices")
    click.echo(f"  tail -f {shlex.quote(str(sandbox.log))}")
    click.echo(f"  {stop_command(sandbox)}")


@click.command
@click.option("--kubeconfig", type=path(dir_okay=False), help="stop the sandbox with this kubeconfig")
@click.option("--all", "everything", is_flag=True, help="stop all of your sandboxes")
def down(kubeconfig: Path | None, *, everything: bool) -> None:
    """Stop a sandbox in the background, and wait until nothing of it remains.

    If several are running, use --kubeconfig or --all.

    Exit code 0: the sandbox has stopped; 2: none is running, or the choice is ambiguous.

    \b
      dra-kit sandbox down
      dra-kit sandbox down --kubeconfig /tmp/kubeconfig
      dra-kit sandbox down --all
    """  # noqa: D301 - click's mark for a paragraph that is not wrapped
    if kubeconfig is not None and everything:
        raise click.UsageError("--kubeconfig cannot be combined with --all.")
    if orphans := remove_abandoned():
        click.echo(f"terminated {orphans} process{'' if orphans == 1 else 'es'} of killed sandboxes")
    found = [item for item in running_in_background() if kubeconfig is None or item.has_kubeconfig(kubeconfig)]
    if not found:
        which = f" with kubeconfig {kubeconfig}" if kubeconfig else ""
        raise SandboxError(
            f"no sandbox{which} is running in the background; start one with dra-kit sandbox TARGET --detach"
        )
    if len(found) > 1 and not everything:
        for sandbox in found:
            click.echo(f"{sandbox.title}, process {sandbox.pid}\n  {stop_command(sandbox)}", err=True)
        raise SandboxError(
            f"{len(found)} sandboxes are running in the background; choose one with --kubeconfig, or stop all with "
            "--all"
        )
    for sandbox in found:
        remaining = stop(sandbox)
        remove_abandoned()  # in case it had to be killed
        click.echo(f"the sandbox of {sandbox.title} has stopped")
        print_remaining(remaining)


@click.command("list")
def list_command() -> None:
    """List your sandboxes in the background, oldest first, and how to use and stop each of them.

    Exit code 0, even if none is running.
    """
    found = running_in_background()
    for sandbox in found:
        click.echo(f"{sandbox.title}, process {sandbox.pid}")
        print_usage(sandbox)
    if not found:
        click.echo("no sandbox is running in the background; start one with dra-kit sandbox TARGET --detach", err=True)


@click.command
@click.argument("name", required=False)
@click.option("--kubeconfig", type=path(dir_okay=False), help="use the sandbox with this kubeconfig")
@click.option("-f", "--follow", is_flag=True, help="print new lines until Ctrl-C, or until the sandbox stops")
def logs(name: str | None, kubeconfig: Path | None, *, follow: bool) -> None:
    """Print the logs of the programs that --plugin, --controller and --webhook start.

    NAME is a process, such as dra-example-kubeletplugin@node-1, or a program, for its processes on all nodes. Without
    NAME, all processes are printed, each line with the name of its process. For containers, including those of a
    chart, use kubectl logs.

    Exit code 0: the logs are printed; 2: no sandbox runs, the choice is ambiguous, or NAME is unknown.

    \b
      dra-kit sandbox logs
      dra-kit sandbox logs dra-example-kubeletplugin@node-1 --follow
    """  # noqa: D301 - click's mark for a paragraph that is not wrapped
    sandbox = _sandbox(kubeconfig)
    printed: dict[str, str] = {}  # the time of the last line of each process
    while True:
        found = read_logs(sandbox.directory)
        wanted = {process: entries for process, entries in found.items() if name in {None, process, _program(process)}}
        if not wanted and not printed:
            known = ", ".join(found) or "none"
            raise SandboxError(
                f"the sandbox has no log of {name or 'a program'}{did_you_mean(name, found)}; processes: {known}; "
                "kubectl logs prints those of containers"
            )
        fresh = [entry for entries in wanted.values() for entry in entries if entry.at > printed.get(entry.process, "")]
        for entry in sorted(fresh, key=lambda entry: entry.at):
            text = escape_unprintable(entry.text, keep="\t")
            click.echo(text if name == entry.process else f"{entry.process} | {text}")
        printed |= {process: entries[-1].at for process, entries in wanted.items() if entries}
        if not follow or not sandbox.directory.exists():
            return
        time.sleep(_FOLLOW_SECONDS)


def _program(process: str) -> str:
    return process.partition("@")[0]


@click.command("schema")
@click.option("--timeline", is_flag=True, help="print the schema of a line in a --record file instead")
def schema_command(*, timeline: bool) -> None:
    """Print the JSON schema of a story's expect.yaml, for editors that complete and check it.

    \b
      dra-kit sandbox schema > story.schema.json

    To use it, start the expect.yaml next to it with the line:

    \b
      # yaml-language-server: $schema=../story.schema.json
    """  # noqa: D301 - click's mark for a paragraph that is not wrapped
    schema = timeline_schema() if timeline else story_schema()
    click.echo(json.dumps(schema, indent=2, ensure_ascii=False))
