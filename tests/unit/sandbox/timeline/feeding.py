"""Readers of what happens in a sandbox."""

from __future__ import annotations

from dra_kit.sandbox.timeline.feed import TimelineFeed
from dra_kit.sandbox.timeline.recording import Reader, Timeline


def feeding(*readers: Reader) -> TimelineFeed:
    """An observer of a sandbox that hands records to readers."""
    timeline = Timeline()
    for reader in readers:
        timeline.subscribe(reader)
    return TimelineFeed(timeline)
