"""``dra-kit drain``."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click
from msgspec import to_builtins

from dra_kit.cli.options import context_option, credentials_of, output_option, pod_kubeconfig_option, variable_option
from dra_kit.diagnosis.drain import DrainQuery, DrainState, DrainStatus, RemovalConfirmations, wait_drained
from dra_kit.text import align_columns, counted, did_you_mean, escape_unprintable

HELD: Final = 3
"""The exit code where claims with devices are in use."""
UNCONFIRMED: Final = 4
"""The exit code where no claim is in use, and nodes have not confirmed the removal."""
_NAMES: Final = 5


@click.command
@variable_option("--driver", required=True, envvar="DRA_DRIVER", help="name of the driver")
@click.option("--node", help="only devices of this node  [default: all nodes]")
@click.option(
    "--wait",
    default=0.0,
    show_default=True,
    type=click.FloatRange(min=0.0),
    help="seconds to wait until no claim is in use and all nodes have confirmed",
)
@click.option(
    "--until-removed/--no-until-removed",
    default=None,
    help="also wait until every node has confirmed that nothing of the driver is left  [default: where a DaemonSet of "
    "the driver runs dra-kit decommission]",
)
@click.option(
    "--skip-node",
    "skip",
    multiple=True,
    metavar="NODE",
    help="do not wait for the claims and the confirmation of this node, which is permanently gone; may be repeated",
)
@click.option("-n", "--namespace", help="namespace of the driver's DaemonSet  [default: all namespaces]")
@click.option("--allow-unknown", is_flag=True, help="accept a driver that nothing in the cluster mentions")
@output_option
@context_option
@pod_kubeconfig_option
@click.pass_context
def drain(  # noqa: PLR0917 - click passes them by name
    ctx: click.Context,
    driver: str,
    node: str | None,
    wait: float,
    until_removed: bool | None,
    skip: tuple[str, ...],
    namespace: str | None,
    allow_unknown: bool,
    output: str,
    context: str | None,
    kubeconfig: Path | None,
) -> None:
    """Show which claims still use devices of a driver, before you remove it or drain a node.

    Pods that use a driver's devices can only terminate while the driver runs. The command changes nothing. It needs
    the right to list resourceclaims.

    With --until-removed it also waits for the nodes. A node confirms with the condition dra-kit/Decommissioned of the
    pod that runs `dra-kit decommission --stay --pod` there, once nothing of the driver is left. This needs the right to
    list daemonsets (label app.kubernetes.io/name: DRIVER), their pods, and resourceslices; with the right to list
    nodes, the command does not wait for deleted nodes. If the driver has no DaemonSet, only its slices are checked: a
    process that you start manually confirms with its exit code.

    If a driver has no claims, the command checks its name against resourceslices, deviceclasses and daemonsets, if it
    may list them.

    Exit code 0: no claim is in use and all nodes have confirmed; 3: claims are in use; 4: only confirmations are
    missing; 2: the driver is unknown or is not being removed; 1: the API server rejects the request or does not answer.
    """
    query = DrainQuery(
        driver=driver,
        node=node,
        skip=frozenset(skip),
        until_removed=until_removed,
        namespace=namespace,
        may_be_unknown=allow_unknown,
    )

    def show_waiting(found: DrainState) -> None:
        if wait and output == "text" and not found.is_over:
            click.echo(escape_unprintable(f"waiting for {_waiting(found)}"), err=True)

    async def ask() -> DrainState:
        credentials = await credentials_of(kubeconfig, context)
        return await wait_drained(credentials, query, wait=wait, changed=show_waiting)

    found = asyncio.run(ask())
    if output == "json":
        click.echo(json.dumps(_as_json(found), indent=2))
    else:
        for line in _lines(found, query):
            click.echo(escape_unprintable(line))
    ctx.exit(HELD if found.holders.held else UNCONFIRMED if not found.is_over else 0)


def _as_json(found: DrainState) -> dict[str, Any]:
    holders: dict[str, Any] = to_builtins(found.holders)
    removal = None if found.removal is None else to_builtins(found.removal)
    return {**holders, "removal": removal, "unreadable": list(found.unreadable)}


def _waiting(found: DrainState) -> str:
    parts = [counted(len(found.holders.held), "claim")] if found.holders.held else []
    if found.removal is not None and found.removal.unconfirmed:
        parts.append(f"the confirmation of {_where(found.removal)}")
    return " and ".join(parts)


def _where(removal: RemovalConfirmations) -> str:
    named = [item.node for item in removal.unconfirmed if item.node]
    return _some(named) if len(named) == len(removal.unconfirmed) else _some([*named, "nodes without a pod yet"])


def _lines(found: DrainState, query: DrainQuery) -> Iterator[str]:
    where = f"driver {query.driver}" + (f" on node {query.node}" if query.node else "")
    yield from _of_holders(found.holders, query.driver, where)
    if found.unreadable:
        yield f"cannot check whether driver {query.driver} exists: you may not list {', '.join(found.unreadable)}"
    if found.removal is not None:
        yield from _of_removal(found.removal, where)


def _of_holders(found: DrainStatus, driver: str, where: str) -> Iterator[str]:
    if found.held:
        rows = [["NODE", "POD", "CLAIM", "DEVICES"]]
        for item in found.held:
            users = ", ".join(f"{item.namespace}/{user}" for user in item.users)
            rows.append([item.node or "-", users, f"{item.namespace}/{item.claim}", ", ".join(item.devices)])
        yield from align_columns(rows)
        yield (
            f"{where}: {counted(len(found.held), 'claim')} in use; delete the pods, or wait until they "
            "terminate, before you remove the driver"
        )
    else:
        wrong = "" if found.is_allocated else did_you_mean(driver, found.others)  # of a misspelt name nothing is found
        yield f"{where}: no claim is in use{wrong}"
    if found.idle:
        names = ", ".join(f"{item.namespace}/{item.claim}" for item in found.idle)
        yield f"allocated but not in use: {names}; pods that use them later will wait for the driver"
    if found.skipped:
        names = ", ".join(f"{item.namespace}/{item.claim} on {item.node}" for item in found.skipped)
        yield f"in use and skipped: {names}"


def _of_removal(removal: RemovalConfirmations, where: str) -> Iterator[str]:
    if removal.unconfirmed:
        yield from align_columns(
            [["NODE", "NOT CONFIRMED"], *([item.node or "-", item.reason] for item in removal.unconfirmed)]
        )
        flags = " ".join(f"--skip-node {item.node}" for item in removal.unconfirmed if item.node)
        yield (
            f"{where}: {_where(removal)} did not confirm that nothing is left; wait, or repair the nodes. To skip "
            f"nodes that are permanently gone: dra-kit drain --until-removed {flags or '--skip-node NODE'}, then "
            "helm uninstall --no-hooks; or drainGuard.skipNodes in the chart's values"
        )
    else:
        names = f": {_some(removal.confirmed)}" if removal.confirmed else ""
        yield f"{where}: nothing is left on {counted(len(removal.confirmed), 'node')}{names}"
    if removal.skipped:
        yield f"skipped: {_some(removal.skipped)}; anything left on them remains"
    if removal.not_asked:
        yield (
            f"not asked: {_some(removal.not_asked)}; no pod of the driver runs there. If the DaemonSet selected such a "
            "node earlier, the node still has the driver's state: let the DaemonSet select it again, or run dra-kit "
            "decommission there"
        )


def _some(names: list[str] | tuple[str, ...]) -> str:
    more = len(names) - _NAMES
    return ", ".join(names[:_NAMES]) + (f" and {more} more" if more > 0 else "")
