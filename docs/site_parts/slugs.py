"""The anchor of a heading, as GitHub makes it, so that a link holds there and on the site."""

from __future__ import annotations

import re


def slug(heading: str) -> str:
    """Lower case, without punctuation, each space a hyphen (github.com/Flet/github-slugger)."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")
