"""Who is notified while a story runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dra_kit.sandbox.stories.result import Failure
from dra_kit.sandbox.stories.stage import Made
from dra_kit.sandbox.stories.story import Step, Story

if TYPE_CHECKING:
    from dra_kit.sandbox.stories.expectations.facts import Facts


class StoryObserver:
    """Is notified of what happens, while it happens; does nothing with it."""

    async def begun(self, story: Story, namespace: str) -> None:
        """Note that the namespace exists, and nothing else yet."""

    async def applied(self, step: Step, made: Sequence[Made]) -> None:
        """Note that a step was carried out; what it expects is waited for.

        Args:
            step: of the story.
            made: everything that was made so far.
        """

    async def done(self, step: Step, facts: Facts) -> None:
        """Note that everything that a step expects is true."""

    async def ended(self, failure: Failure | None) -> None:
        """Note that no other step follows, and everything is still there.

        Args:
            failure: of the last step; None when all of it was true.
        """

    def waiting(self, found: Sequence[str], seconds: float) -> None:
        """Note that what was deleted is not gone after a while.

        Args:
            found: what is still there.
            seconds: that the clean-up may take.
        """

    async def cleaned(self, leftovers: Sequence[str]) -> None:
        """Note that everything was deleted, and what remained all the same."""
