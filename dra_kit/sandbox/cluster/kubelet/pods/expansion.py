"""``$(NAME)`` in commands, arguments and variables of a container, as the kubelet replaces it: pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

_REFERENCE = re.compile(r"\$(?:\$|\(([^()]*)\))")


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Return the text with its references replaced.

    ``$(NAME)`` becomes the variable's value, and stays as it is for an unknown one. ``$$`` becomes ``$``, so that
    ``$$(NAME)`` stands for ``$(NAME)`` itself. What replaces a reference is not looked at again.
    """

    def value(match: re.Match[str]) -> str:
        name = match[1]
        return "$" if name is None else variables.get(name, match[0])

    return _REFERENCE.sub(value, text)
