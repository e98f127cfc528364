"""Links from the documentation to other files of the repository."""

from __future__ import annotations

import os
import re
from pathlib import Path

_LINK = re.compile(r"\[([^\]]+)\]\(((?:\.\./)+[^)#\s]+)(?:#[^)]*)?\)")


def lead_to(source_url: str, page: Path, text: str) -> str:
    """Replace links to source files by links below ``source_url``, or by plain paths without a URL."""
    docs = next(folder for folder in page.parents if folder.name == "docs")

    def elsewhere(link: re.Match[str]) -> str:
        file = Path(os.path.normpath(page.parent / link[2]))
        if file.is_relative_to(docs):
            return link[0]
        path = file.relative_to(docs.parent)
        return f"[{link[1]}]({source_url}/{path})" if source_url else f"{link[1]} (`{path}`)"

    return _LINK.sub(elsewhere, text)
