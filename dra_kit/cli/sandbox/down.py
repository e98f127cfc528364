"""``dra-kit sandbox down``."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dra_kit.cli.options.common import path
from dra_kit.errors import SandboxError

if TYPE_CHECKING:
    from dra_kit.sandbox.run.detached import DetachedSandbox


def how_to_end(sandbox: DetachedSandbox) -> str:
    """Return the command that ends this sandbox and no other."""
    return f"dra-kit sandbox down --kubeconfig {shlex.quote(sandbox.kubeconfig)}"


def how_to_use(sandbox: DetachedSandbox) -> tuple[str, ...]:
    """Return the commands that look into this sandbox, read its output, and end it."""
    kubeconfig = shlex.quote(sandbox.kubeconfig)
    return (
        f"kubectl --kubeconfig {kubeconfig} get resourceslices",
        f"tail -f {shlex.quote(str(sandbox.log))}",
        how_to_end(sandbox),
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
    from dra_kit.sandbox.cluster.directory import remove_abandoned
    from dra_kit.sandbox.run.detached import end, running

    if kubeconfig is not None and everything:
        raise click.UsageError("--kubeconfig and --all do not go together.")
    if orphans := remove_abandoned():
        click.echo(f"ended what killed sandboxes had left: {orphans} process{'' if orphans == 1 else 'es'}")
    found = [item for item in running() if kubeconfig is None or item.has_kubeconfig(kubeconfig)]
    if not found:
        which = f" with kubeconfig {kubeconfig}" if kubeconfig else ""
        raise SandboxError(f"no sandbox{which} runs in the background; start one with dra-kit sandbox TARGET --detach")
    if len(found) > 1 and not everything:
        for sandbox in found:
            click.echo(f"{sandbox.title}, process {sandbox.pid}\n  {how_to_end(sandbox)}", err=True)
        raise SandboxError(
            f"{len(found)} sandboxes run in the background, and none was ended; say which with --kubeconfig, or --all"
        )
    for sandbox in found:
        end(sandbox)
        remove_abandoned()  # it may have been killed, since it did not end by itself
        click.echo(f"the sandbox of {sandbox.title} has ended")
