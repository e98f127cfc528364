"""The options of commands that take the kubelet's calls on a node, and the settings that they make."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from dra_kit.cli.options.common import path
from dra_kit.node.settings import NodeSettings

F = TypeVar("F", bound=Callable[..., Any])


def node_options(function: F) -> F:
    """Add ``--node-name``, the directories, and how the kubelet is served."""
    for option in (
        click.option(
            "--check-device-nodes/--no-check-device-nodes",
            default=True,
            show_default=True,
            envvar="DRA_CHECK_DEVICE_NODES",
            show_envvar=True,
            help="look for the device files of a claim on this node before it is told prepared; not in a container "
            "that has not the node's /dev",
        ),
        click.option(
            "--orphan-after",
            default=600.0,
            show_default=True,
            type=click.FloatRange(min=60.0),
            envvar="DRA_ORPHAN_AFTER",
            show_envvar=True,
            help="seconds that a claim must have been gone until it is released without the kubelet",
        ),
        click.option(
            "--hang-timeout",
            default=600.0,
            show_default=True,
            type=click.FloatRange(min=60.0),
            envvar="DRA_HANG_TIMEOUT",
            show_envvar=True,
            help="seconds after which a call of the driver's code that has not returned makes /healthz fail",
        ),
        click.option(
            "--dra-versions",
            default="v1,v1beta1",
            show_default=True,
            envvar="DRA_VERSIONS",
            show_envvar=True,
            help="versions of the kubelet's DRA service to offer",
        ),
        click.option(
            "--pod-uid",
            envvar="DRA_POD_UID",
            show_envvar=True,
            help="UID of this pod, so that rolling updates overlap",
        ),
        click.option(
            "--cdi-dir",
            default="/var/run/cdi",
            show_default=True,
            type=path(),
            envvar="DRA_CDI_DIR",
            show_envvar=True,
            help="where the container runtime looks for CDI files",
        ),
        click.option(
            "--kubelet-dir",
            default="/var/lib/kubelet",
            show_default=True,
            type=path(),
            envvar="DRA_KUBELET_DIR",
            show_envvar=True,
            help="root directory of the kubelet",
        ),
        click.option("--node-name", envvar="DRA_NODE_NAME", show_envvar=True, help="name of this node's Node object"),
    ):
        function = option(function)
    return function


def node_settings(options: Mapping[str, Any], *, state_dir: Path | None, author: Any) -> NodeSettings:
    """Return the settings by the options.

    Args:
        options: by name, those of :func:`node_options` and of :func:`dra_kit.cli.options.common.common`.
        state_dir: of the durable state; None for the usual one.
        author: the driver's own settings.

    Raises:
        click.UsageError: the node's name is missing.
    """
    if not options["node_name"]:
        raise click.UsageError("Missing option '--node-name' (DRA_NODE_NAME): the name of this node's Node object.")
    return NodeSettings(
        node_name=options["node_name"],
        kubeconfig=options["kubeconfig"],
        kubelet_dir=options["kubelet_dir"].absolute(),
        cdi_dir=options["cdi_dir"].absolute(),
        state_dir=state_dir.absolute() if state_dir else None,
        pod_uid=options["pod_uid"],
        probe_address=options["probe_address"],
        hang_timeout=options["hang_timeout"],
        orphan_after=options["orphan_after"],
        check_device_nodes=options["check_device_nodes"],
        dra_versions=tuple(item.strip() for item in options["dra_versions"].split(",") if item.strip()),
        author=author,
    )
