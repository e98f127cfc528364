"""Heading anchors as on GitHub, so that links work on both."""

from __future__ import annotations

import re


def slug(heading: str) -> str:
    """Return a heading in lower case, without punctuation, with hyphens for spaces (github.com/Flet/github-slugger)."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")
