"""What is wrong with one device, by the author's policy: damping, stickiness, the sum of it; pure."""

from __future__ import annotations

import datetime as dt
import math
import time
from collections.abc import Iterator, Mapping
from typing import Final, Literal, TypeAlias

from msgspec import Struct

from dra_kit.author.devices.health import HealthRule

Status: TypeAlias = Literal["Healthy", "Unhealthy", "Unknown"]


_REPORTED_ALONE: Final = HealthRule()
"""For a reason without a rule."""


class Moment(Struct, frozen=True):
    """A point in time.

    Attributes:
        seconds: by a clock that does not jump.
        date: by the wall clock, for people and the API.
    """

    seconds: float
    date: dt.datetime


def present() -> Moment:
    """Return the time now."""
    return Moment(time.monotonic(), dt.datetime.now(dt.UTC))


class Problem(Struct, frozen=True):
    """Something that is wrong with a device, and counts.

    Attributes:
        reason: a key of the policy.
        message: for people.
        value: of the taint, None where the rule says it.
        since: when it began to count, in whole seconds as the API has them.
    """

    reason: str
    message: str
    value: str | None
    since: dt.datetime


class _Condition(Struct):
    rule: HealthRule
    problem: Problem | None = None  # None: nothing is wrong
    turned: float | None = None  # since when the reports say the opposite of that
    message: str = ""  # of the last report, and its value
    value: str | None = None
    unknown: str | None = None  # why nothing is known of it
    injected: bool = False  # reports of the source do not count


class Conditions:
    """One device.

    Args:
        policy: the author's.
        stale_after: the author's.
    """

    def __init__(self, policy: Mapping[str, HealthRule], stale_after: float | None = None) -> None:
        self._policy = policy
        self._stale_after = stale_after
        self._heard: float | None = None  # when the source last spoke of it
        self._unknown: str | None = None  # why nothing can be known
        self._stale = False
        self._conditions: dict[str, _Condition] = {}

    # -- what is reported

    def unhealthy(self, reason: str, message: str, value: str | None, now: Moment, *, injected: bool = False) -> None:
        """Take a report that something is wrong; an injected one counts at once and stays until it is withdrawn."""
        if not injected:
            self._listen(now)
        condition = self._of(reason)
        if condition.injected and not injected:
            return
        condition.injected = injected
        condition.message, condition.value, condition.unknown = message, value, None
        if condition.problem is not None:
            condition.problem = Problem(reason, message, value, condition.problem.since)
            condition.turned = None
        elif injected:
            condition.turned = -math.inf
        elif condition.turned is None:
            condition.turned = now.seconds
        self.settle(now)

    def healthy(self, reason: str, now: Moment) -> None:
        """Take a report that one thing, or everything, is healthy."""
        self._listen(now)
        for one in [reason] if reason else list(self._conditions):
            condition = self._of(one)
            condition.unknown = None
            if not condition.injected and not (condition.rule.sticky and condition.problem is not None):
                _well(condition, now)
        self.settle(now)

    def unknown(self, reason: str, message: str, now: Moment) -> None:
        """Take a report that one thing, or anything, is unknown; what is known to be wrong stays so."""
        self._listen(now)
        if reason:
            self._of(reason).unknown = message
        else:
            self._unknown = message

    def taken_back(self, reason: str, now: Moment) -> None:
        """End an injected condition; the source decides again."""
        condition = self._of(reason)
        condition.injected = False
        if not condition.rule.sticky:
            condition.turned = None if condition.problem is None else -math.inf
        self.settle(now)

    def asked(self, reason: str, now: Moment, *, recovered: bool) -> None:
        """Take the answer of the author's ``recovered``."""
        condition = self._of(reason)
        if condition.problem is None or condition.injected:
            return
        if recovered:
            _well(condition, now)
        else:
            condition.turned = None
        self.settle(now)

    def restore(self, problem: Problem) -> None:
        """Restore what counted when it was stored, by the process before."""
        if problem.reason in self._policy:
            condition = self._of(problem.reason)
            condition.problem, condition.message, condition.value = problem, problem.message, problem.value

    # -- what follows

    def settle(self, now: Moment) -> None:
        """Let what has lasted long enough count."""
        for reason, condition in self._conditions.items():
            if condition.turned is None or now.seconds < condition.turned + _patience(condition):
                continue
            condition.turned = None
            if condition.problem is None:
                since = now.date.replace(microsecond=0)
                condition.problem = Problem(reason, condition.message, condition.value, since)
            else:
                condition.problem = None
        stale = self._stale_at
        self._stale = stale is not None and now.seconds >= stale

    def due(self) -> float | None:
        """Return when :meth:`settle` has something to do; None for never, if nothing is reported."""
        times = [item.turned + _patience(item) for item in self._conditions.values() if item.turned is not None]
        if not self._stale and self._stale_at is not None:
            times.append(self._stale_at)
        return min(times, default=None)

    def problems(self) -> Mapping[str, Problem]:
        """Return what counts, by reason."""
        return {reason: item.problem for reason, item in self._conditions.items() if item.problem is not None}

    def to_ask(self) -> list[str]:
        """Return the reasons whose end only the author's ``recovered`` tells."""
        return [
            reason
            for reason, item in self._conditions.items()
            if item.rule.sticky and item.problem is not None and not item.injected
        ]

    def status(self) -> tuple[Status, str] | None:
        """Return what the kubelet is to get, with a text for people; None where nothing was reported yet."""
        wrong = [item.problem for item in self._reported() if item.problem is not None]
        if wrong:
            texts = (f"{item.reason}: {item.message}" if item.message else item.reason for item in wrong)
            return "Unhealthy", "; ".join(texts)
        if self._heard is None:
            return None
        unknown = [self._unknown, *(item.unknown for item in self._reported())]
        if why := [text for text in unknown if text is not None]:
            return "Unknown", "; ".join(filter(None, why))
        if self._stale:
            return "Unknown", f"nothing was heard of it for {self._stale_after:g} s"
        return "Healthy", ""

    def _reported(self) -> Iterator[_Condition]:
        return (item for item in self._conditions.values() if item.rule.report)

    def _listen(self, now: Moment) -> None:
        """Note that the source has reported the device."""
        self._heard, self._stale, self._unknown = now.seconds, False, None

    @property
    def _stale_at(self) -> float | None:
        return None if self._heard is None or self._stale_after is None else self._heard + self._stale_after

    def _of(self, reason: str) -> _Condition:
        known = self._conditions.get(reason)
        if known is None:
            known = self._conditions[reason] = _Condition(self._policy.get(reason, _REPORTED_ALONE))
        return known


def _well(condition: _Condition, now: Moment) -> None:
    if condition.problem is None:
        condition.turned = None
    elif condition.turned is None:
        condition.turned = now.seconds


def _patience(condition: _Condition) -> float:
    rule = condition.rule
    return rule.unhealthy_after if condition.problem is None else rule.healthy_after
