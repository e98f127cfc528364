"""``dra-kit node`` or ``decommission`` in a process that kills itself at a given step or file change."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from dra_kit.sandbox.drivers.process_role import FILE_CHANGE, CrashPoint, KillableProcess

__all__ = ["FILE_CHANGE", "CrashPoint", "NodeProcess"]


class NodeProcess(KillableProcess):
    """One process of the node role.

    Args:
        directory: of its log, its crash point and its result.
        arguments: of ``dra-kit``, first of all the command.
        pod_uid: its pod's.
        environment: further variables.
        watched: the directory in which changes of files count.
        boot_id: the file that tells one boot from another.
        further: fields of ``NodeSettings`` that override the flags.
    """

    def __init__(
        self,
        directory: Path,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        *,
        pod_uid: str,
        watched: Path,
        boot_id: Path,
        further: Mapping[str, float] | None = None,
    ) -> None:
        self.pod_uid = pod_uid
        self._log = directory / "log"
        given = [*arguments, "--pod-uid", pod_uid]
        fields = {"boot_id": boot_id, **(further or {})}
        super().__init__(directory, partial(_node, self._log, given, dict(environment), fields), watched=watched)

    def log(self) -> str:
        return self._log.read_text() if self._log.exists() else ""


def _node(log: Path, arguments: Sequence[str], environment: Mapping[str, str], further: Mapping[str, Any]) -> None:
    from dra_kit import cli
    from dra_kit.cli import roles as node_options
    from dra_kit.node import settings

    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.environ.update(environment)
    # these settings have no flags, because only tests need them
    vars(node_options)["NodeSettings"] = lambda **given: settings.NodeSettings(**{**given, **further})
    sys.argv = ["dra-kit", *arguments]
    cli.main()
