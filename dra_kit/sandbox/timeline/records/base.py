"""What every record of the timeline has."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import ClassVar, Final

from pydantic import ConfigDict
from pydantic.alias_generators import to_camel

_EPOCH: Final = dt.datetime.fromtimestamp(0, dt.UTC)
_CONFIG: Final = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="ignore")


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineRecord:
    """What every record has; the timeline sets all three.

    Attributes:
        number: of the record, counted from 1: the order in which things happened.
        at: wall clock, UTC, with microseconds; it may be set back.
        seconds: since the timeline began, by a clock that is never set back.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _CONFIG

    number: int = 0
    at: dt.datetime = _EPOCH
    seconds: float = 0.0
