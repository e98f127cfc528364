"""Shows how the story of a run goes, and keeps what is not as it should be."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct, field
from typing_extensions import override

from dra_kit.sandbox.stories.observer import StoryObserver
from dra_kit.sandbox.stories.result import Failure
from dra_kit.sandbox.stories.story import Step, Story
from dra_kit.sandbox.timeline.feed import TimelineFeed
from dra_kit.sandbox.timeline.report.problems import PodProblems
from dra_kit.sandbox.timeline.timeline import Timeline
from dra_kit.sandbox.timeline.view.live import LiveView

if TYPE_CHECKING:
    from dra_kit.sandbox.stories.expectations.facts import Facts


class Shown(Struct, frozen=True, kw_only=True):
    """What a run shows, and what becomes of it.

    Attributes:
        view: shows what happens.
        timeline: records of what happens.
        feed: writes them; what has happened is in the timeline after its ``poll()``.
        problems: what stands in the way of pods.
        failures: what is not as it should be, one text for each.
        leftovers: what remains after the clean-up.
    """

    view: LiveView
    timeline: Timeline
    feed: TimelineFeed
    problems: PodProblems
    failures: list[str] = field(default_factory=list)
    leftovers: list[str] = field(default_factory=list)


class RunObserver(StoryObserver):
    """Shows the story of files or of a folder.

    Args:
        shown: the run's view, timeline and failures.
        keep: waits before anything is deleted; None to delete it at once.
    """

    def __init__(self, shown: Shown, keep: Callable[[], Awaitable[None]] | None) -> None:
        self._shown = shown
        self._view = shown.view
        self._keep = keep

    @override
    def waiting(self, found: Sequence[str], seconds: float) -> None:
        self._view.entry(f"waiting up to {seconds:.0f} s for what is deleted", fg="yellow")
        self._view.details(found)

    @override
    async def cleaned(self, leftovers: Sequence[str]) -> None:
        self._shown.leftovers.extend(leftovers)
        if leftovers:
            self._view.entry("left over:", bold=True, fg="red")
            self._view.details(leftovers)
        else:
            self._view.entry("left over: no claim, no CDI file, no record of the driver, no change of hardware")


class FolderObserver(RunObserver):
    """Shows the story of a folder."""

    @override
    async def begun(self, story: Story, namespace: str) -> None:
        self._view.namespace = namespace
        self._view.entry(f"The story: {story.name.replace('-', ' ')}, in namespace {namespace}", bold=True)

    @override
    async def done(self, step: Step, facts: Facts) -> None:
        self._shown.feed.poll()
        self._view.entry("everything is as the story tells it", fg="green")

    @override
    async def ended(self, failure: Failure | None) -> None:
        if self._keep is None:
            return
        if failure is not None:
            self._shown.failures.append(str(failure))
            first, *others = failure.lines
            self._view.entry(first, bold=True, fg="red")
            self._view.details(others)
        await self._keep()
