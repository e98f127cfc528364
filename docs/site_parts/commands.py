"""The commands of ``dra-kit`` with their flags, by sphinx-click."""

from __future__ import annotations

from dra_kit.cli.app import COMMANDS, module_of


def reference() -> str:
    """Return a directive for each command: the group loads them one by one, so that none knows its own name."""
    blocks = [f".. click:: {module_of(name)}:command\n   :prog: dra-kit {name}\n" for name in sorted(COMMANDS)]
    return "\n".join(["", "```{eval-rst}", *blocks, "```", ""])
