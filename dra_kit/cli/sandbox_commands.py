"""``dra-kit sandbox env``."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dra_kit.cli.options.common import path
from dra_kit.errors import SandboxError
from dra_kit.text import did_you_mean

if TYPE_CHECKING:
    from dra_kit.sandbox.run.environment import RunningSandbox


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
    from dra_kit.sandbox.run.environment import running_sandboxes

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
