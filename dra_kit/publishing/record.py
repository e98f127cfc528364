"""What has been published, as numbers: the same ones of every role that publishes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from msgspec import Struct, field

if TYPE_CHECKING:
    from dra_kit.process.metrics.families import Reading


class PublicationRecord(Struct):
    """Counts of publications; one record may outlive several publishers.

    Attributes:
        last_success: when the slices were last found or made as they are wanted, in seconds of the epoch; 0 for never.
        results: how often that was tried, by ``success`` and ``error``.
        writes: slices written, by verb.
        generations: of the pools that are published, by name.
    """

    last_success: float = 0.0
    results: Counter[str] = field(default_factory=Counter)
    writes: Counter[str] = field(default_factory=Counter)
    generations: Mapping[str, int] = field(default_factory=dict)

    def readings(self) -> Iterator[Reading]:
        """Yield the numbers of now; from any thread."""
        from dra_kit.process.metrics import families  # when somebody asks

        for result in ("success", "error"):
            yield families.PUBLICATIONS.of(self.results[result], result)
        for verb in ("create", "update", "delete"):
            yield families.SLICE_WRITES.of(self.writes[verb], verb)
        yield families.LAST_PUBLICATION.of(self.last_success)
        for pool, generation in self.generations.items():
            yield families.POOL_GENERATION.of(generation, pool)
