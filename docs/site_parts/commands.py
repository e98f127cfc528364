"""The commands of ``dra-kit`` with their flags, by sphinx-click."""

from __future__ import annotations

from dra_kit.cli.app import COMMANDS, load_command


def reference() -> str:
    """Return a directive for each command: the group loads them one by one, so that none knows its own name."""
    blocks = [f".. click:: {_place(name)}\n   :prog: dra-kit {name}\n" for name in sorted(COMMANDS)]
    return "\n".join(["", "```{eval-rst}", *blocks, "```", ""])


def _place(name: str) -> str:
    """Return the module and the function of a command."""
    return f"{load_command(name).callback.__module__}:{name.replace('-', '_')}"
