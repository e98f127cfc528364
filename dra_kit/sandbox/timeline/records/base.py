"""What every record of the timeline has."""

from __future__ import annotations

import datetime as dt
from typing import Annotated, Final

from msgspec import Meta, Struct

_EPOCH: Final = dt.datetime.fromtimestamp(0, dt.UTC)


class TimelineRecord(Struct, frozen=True, kw_only=True, tag_field="kind", tag=True, rename="camel"):
    """What every record has; the timeline sets all three. In JSON the field ``kind`` is the name of the class.

    Attributes:
        number: of the record, counted from 1: the order in which things happened.
        at: wall clock, UTC, with microseconds; it may be set back.
        seconds: since the timeline began, by a clock that is never set back.
    """

    number: int = 0
    at: Annotated[dt.datetime, Meta(tz=True)] = _EPOCH
    seconds: float = 0.0
