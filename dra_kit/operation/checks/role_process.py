"""Whose pod this is: its first process tells which role runs there, and with which TARGET."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from msgspec import Struct

from dra_kit.operation.checks.needed import Account

_COMMANDS: Final[Mapping[str, tuple[Account, int]]] = {
    "node": ("node", 1),
    "controller": ("controller", 1),
    "webhook": ("webhook", 1),
    "undertake": ("undertaker", 2),
}
"""Commands of roles, with the account of each, and how many words after the command its TARGET is."""


class RoleProcess(Struct, frozen=True):
    """The first process of a role's container.

    Attributes:
        role: that runs.
        target: its TARGET; empty where the command does not begin with it.
    """

    role: Account
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
            command, options = words[number + 1], words[number + 2 :]
            if command in _COMMANDS:
                role, place = _COMMANDS[command]
                before = options[:place]
                named = len(before) == place and not any(option.startswith("-") for option in before)
                return RoleProcess(role, before[-1] if named else "")
    return None
