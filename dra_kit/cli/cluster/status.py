"""``dra-kit status``."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Final

import click

from dra_kit.cli.options.common import path
from dra_kit.text import escape_unprintable, escape_unprintable_json

NOT_WELL: Final = 3
"""Exit code when something is wrong with a driver, or one does not answer."""


@click.command
@click.option("--driver", help="name of the driver  [default: all of this node]")
@click.option(
    "--kubelet-dir", default="/var/lib/kubelet", show_default=True, type=path(), envvar="DRA_KUBELET_DIR",
    show_envvar=True, help="root directory of the kubelet",
)  # fmt: skip
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.pass_context
def command(ctx: click.Context, driver: str | None, kubelet_dir: Path, output: str) -> None:
    """Tell how the drivers of this node are: run it on the node as root, or in a driver's pod.

    What is prepared for whom, effects on the hardware, the last failures, whether the kubelet has registered the driver
    and why not, and slices as they are published and as they are wanted. While a driver is updated it has two
    processes: which of them the kubelet calls, and what the new one waits for.

    Exit code 0: all is well; 3: something is not, or a driver does not answer.

    \b
      kubectl exec ds/pizza-node -- dra-kit status
    """  # noqa: D301 - click's mark for a paragraph that is not wrapped
    from dra_kit.operation.status.on_node import statuses
    from dra_kit.operation.status.problems import problems, with_problems
    from dra_kit.operation.status.text import status_text

    documents, silent = asyncio.run(statuses(kubelet_dir, driver))
    if output == "json":
        answered = [with_problems(document) for document in documents]
        text = json.dumps({"drivers": answered, "notAnswering": silent}, indent=2, ensure_ascii=False)
        click.echo(escape_unprintable_json(text))
    else:
        click.echo("\n\n".join(map(status_text, documents)), nl=bool(documents))
        for line in silent:
            click.echo(escape_unprintable(line), err=True)
    ctx.exit(NOT_WELL if silent or any(map(problems, documents)) else 0)
