"""Messages of the node's log that others wait for: by these, and never by their details."""

from __future__ import annotations

from typing import Final

DISCOVER_FAILED: Final = "discover failed"
"""The author's ``discover`` has raised, or has yielded what is no inventory."""

NOT_PUBLISHED: Final = "slices not published"
"""The API server refuses ResourceSlices, or does not answer."""
