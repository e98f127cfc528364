"""Whose pod this is: its first process tells which role runs there, and with which TARGET."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dra_kit.process.metrics.families import Role

_ROLES: Final[tuple[Role, ...]] = ("node", "controller", "webhook")


@dataclass(frozen=True, slots=True)
class RoleProcess:
    """The first process of a role's container.

    Attributes:
        role: that runs.
        target: its TARGET; empty where the second word does not name it.
    """

    role: Role
    target: str


def role_process(processes: Path = Path("/proc")) -> RoleProcess | None:
    """Return the role whose container this is; None where the first process is something else.

    Args:
        processes: the file system that shows processes.
    """
    try:
        words = (processes / "1" / "cmdline").read_bytes().decode(errors="replace").rstrip("\0").split("\0")
    except OSError:
        return None
    for number, word in enumerate(words[:3]):  # an interpreter may come before it
        if Path(word).name == "dra-kit" and number + 1 < len(words):
            role, target = words[number + 1], (*words[number + 2 :], "")[0]
            for known in _ROLES:
                if role == known:
                    return RoleProcess(known, "" if target.startswith("-") else target)
    return None
