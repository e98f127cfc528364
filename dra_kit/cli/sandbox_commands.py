"""Words of ``dra-kit sandbox`` that are not TARGETs: down, env, list, schema."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import click

from dra_kit.cli.options import path
from dra_kit.errors import SandboxError
from dra_kit.sandbox.directory import remove_abandoned
from dra_kit.sandbox.run.detached import DetachedSandbox, RunningSandbox, running_in_background, running_sandboxes, stop
from dra_kit.sandbox.stories.model import story_schema
from dra_kit.sandbox.timeline.recording import timeline_schema
from dra_kit.text import did_you_mean


@click.command
@click.option("--kubeconfig", type=path(dir_okay=False), help="of the one with this kubeconfig")
@click.option("--node", help="of this node  [default: the only one]")
@click.option("--json", "as_json", is_flag=True, help="print a JSON object instead of lines for a shell")
def env(kubeconfig: Path | None, node: str | None, *, as_json: bool) -> None:
    """Print what a driver needs that is started by hand, in any language, as lines for a shell.

    They name the kubeconfig of a sandbox that runs, in the foreground or in the background, a node of it, and the
    node's directories, by the names that Kubernetes' own drivers read, and by those that dra-kit node reads. Where
    several sandboxes run, say which.

    Exit code 0: it is printed; 2: none runs, or it is not clear which one to take.

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
            f"no sandbox{which} runs, or it is not up yet; start one with dra-kit sandbox, in another shell or with "
            "--detach"
        )
    if len(found) > 1:
        for item in found:
            click.echo(
                f"{item.title}\n  dra-kit sandbox env --kubeconfig {shlex.quote(item.kubeconfig)}",
                err=True,
            )
        raise SandboxError(f"{len(found)} sandboxes run; say which with --kubeconfig")
    return found[0]


def _node(sandbox: RunningSandbox, wanted: str | None) -> str:
    names = list(sandbox.nodes)
    if wanted is None and len(names) == 1:
        return names[0]
    if wanted is None:
        raise SandboxError(f"the sandbox has {len(names)} nodes; say which with --node: {', '.join(names)}")
    if wanted not in sandbox.nodes:
        raise SandboxError(
            f"--node {wanted}: the sandbox has no such node{did_you_mean(wanted, names)}; it has {', '.join(names)}"
        )
    return wanted


def stop_command(sandbox: DetachedSandbox) -> str:
    """Return the command that ends this sandbox and no other."""
    return f"dra-kit sandbox down --kubeconfig {shlex.quote(sandbox.kubeconfig)}"


def usage_lines(sandbox: DetachedSandbox) -> tuple[str, ...]:
    """Return the commands that look into this sandbox, read its output, and end it."""
    kubeconfig = shlex.quote(sandbox.kubeconfig)
    return (
        f"kubectl --kubeconfig {kubeconfig} get resourceslices",
        f"tail -f {shlex.quote(str(sandbox.log))}",
        stop_command(sandbox),
    )


@click.command
@click.option("--kubeconfig", type=path(dir_okay=False), help="end the one with this kubeconfig")
@click.option("--all", "everything", is_flag=True, help="end all that are yours")
def down(kubeconfig: Path | None, *, everything: bool) -> None:
    """End a sandbox that runs in the background, and wait until nothing of it remains.

    Where several run, say which.

    Exit code 0: it has ended; 2: there is none, or there are several.

    \b
      dra-kit sandbox down
      dra-kit sandbox down --kubeconfig /tmp/kubeconfig
      dra-kit sandbox down --all
    """  # noqa: D301 - click's mark for a paragraph that is not wrapped
    if kubeconfig is not None and everything:
        raise click.UsageError("--kubeconfig and --all do not go together.")
    if orphans := remove_abandoned():
        click.echo(f"ended what killed sandboxes had left: {orphans} process{'' if orphans == 1 else 'es'}")
    found = [item for item in running_in_background() if kubeconfig is None or item.has_kubeconfig(kubeconfig)]
    if not found:
        which = f" with kubeconfig {kubeconfig}" if kubeconfig else ""
        raise SandboxError(f"no sandbox{which} runs in the background; start one with dra-kit sandbox TARGET --detach")
    if len(found) > 1 and not everything:
        for sandbox in found:
            click.echo(f"{sandbox.title}, process {sandbox.pid}\n  {stop_command(sandbox)}", err=True)
        raise SandboxError(
            f"{len(found)} sandboxes run in the background, and none was ended; say which with --kubeconfig, or --all"
        )
    for sandbox in found:
        stop(sandbox)
        remove_abandoned()  # it may have been killed, since it did not end by itself
        click.echo(f"the sandbox of {sandbox.title} has ended")


@click.command("list")
def list_command() -> None:
    """Tell which sandboxes of yours run in the background, the oldest first, and how to use and to end each.

    Exit code 0, also when there is none.
    """
    found = running_in_background()
    for sandbox in found:
        click.echo(f"{sandbox.title}, process {sandbox.pid}")
        for line in usage_lines(sandbox):
            click.echo(f"  {line}")
    if not found:
        click.echo("no sandbox runs in the background; dra-kit sandbox TARGET --detach starts one", err=True)


@click.command("schema")
@click.option("--timeline", is_flag=True, help="that of a line of the file that --timeline keeps")
def schema_command(*, timeline: bool) -> None:
    """Print the JSON schema of a story's expect.yaml, for editors that complete and check it.

    \b
      dra-kit sandbox schema > story.schema.json

    and, as the first line of an expect.yaml beside it:

    \b
      # yaml-language-server: $schema=../story.schema.json
    """  # noqa: D301 - click's mark for a paragraph that is not wrapped
    schema = timeline_schema() if timeline else story_schema()
    click.echo(json.dumps(schema, indent=2, ensure_ascii=False))
