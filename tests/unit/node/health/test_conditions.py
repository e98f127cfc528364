"""The policy of one device: damping, stickiness, what follows; all of it by a clock that the tests move."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

import dra_kit as dra
from dra_kit.node.health_ledger import DeviceConditions, HealthProblem, HealthTime

BEGIN = dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC)


def at(seconds: float) -> HealthTime:
    return HealthTime(seconds, BEGIN + dt.timedelta(seconds=seconds))


def device(stale_after: float | None = None, **policy: dra.HealthRule) -> DeviceConditions:
    return DeviceConditions(policy, stale_after)


def wrong(conditions: DeviceConditions) -> list[str]:
    return sorted(conditions.problems())


def test_nothing_is_told_before_anything_was_said() -> None:
    assert device().status() is None


def test_a_device_is_unhealthy_as_long_as_anything_is_wrong() -> None:
    gpu = device(hot=dra.HealthRule(), xid=dra.HealthRule())
    gpu.unhealthy("hot", "93 °C", None, at(0))
    gpu.unhealthy("xid", "", None, at(1))
    assert gpu.status() == ("Unhealthy", "hot: 93 °C; xid")
    gpu.healthy("hot", at(2))
    assert gpu.status() == ("Unhealthy", "xid")
    gpu.healthy("", at(3))
    assert gpu.status() == ("Healthy", "")


def test_the_time_of_a_problem_is_that_of_its_beginning_and_its_text_the_latest() -> None:
    gpu = device(xid=dra.HealthRule())
    gpu.unhealthy("xid", "XID 48", "48", at(0.5))
    gpu.unhealthy("xid", "XID 79", "79", at(7))
    assert gpu.problems() == {"xid": HealthProblem("xid", "XID 79", "79", BEGIN)}


def test_what_flickers_does_not_count() -> None:
    gpu = device(hot=dra.HealthRule(unhealthy_after=30))
    gpu.unhealthy("hot", "", None, at(0))
    gpu.healthy("hot", at(20))
    gpu.unhealthy("hot", "", None, at(25))
    gpu.settle(at(54))
    assert wrong(gpu) == []
    assert gpu.due() == 55
    gpu.settle(at(55))
    assert wrong(gpu) == ["hot"]
    assert gpu.due() is None


def test_what_is_over_is_taken_back_when_it_was_over_for_long_enough() -> None:
    gpu = device(hot=dra.HealthRule(healthy_after=60))
    gpu.unhealthy("hot", "", None, at(0))
    gpu.healthy("hot", at(10))
    gpu.unhealthy("hot", "", None, at(20))
    gpu.healthy("hot", at(30))
    gpu.settle(at(89))
    assert wrong(gpu) == ["hot"]
    gpu.settle(at(90))
    assert wrong(gpu) == []


def test_what_sticks_stays_until_it_has_recovered() -> None:
    gpu = device(xid=dra.HealthRule(sticky=True))
    assert gpu.to_ask() == []
    gpu.unhealthy("xid", "", None, at(0))
    gpu.healthy("", at(1))
    gpu.healthy("xid", at(2))
    assert (wrong(gpu), gpu.to_ask()) == (["xid"], ["xid"])
    gpu.asked("xid", at(3), recovered=False)
    assert wrong(gpu) == ["xid"]
    gpu.asked("xid", at(4), recovered=True)
    assert (wrong(gpu), gpu.to_ask()) == ([], [])


def test_a_recovery_is_damped_too() -> None:
    gpu = device(xid=dra.HealthRule(sticky=True, healthy_after=60))
    gpu.unhealthy("xid", "", None, at(0))
    gpu.asked("xid", at(10), recovered=True)
    gpu.asked("xid", at(20), recovered=False)
    gpu.asked("xid", at(30), recovered=True)
    gpu.asked("xid", at(80), recovered=True)
    assert wrong(gpu) == ["xid"]
    gpu.settle(at(90))
    assert wrong(gpu) == []


def test_what_cannot_be_told_changes_nothing_that_is_known() -> None:
    gpu = device(hot=dra.HealthRule())
    gpu.unhealthy("hot", "", None, at(0))
    gpu.unknown("hot", "no answer", at(1))
    gpu.unknown("", "no answer", at(1))
    assert gpu.status() == ("Unhealthy", "hot")
    gpu.healthy("", at(2))
    gpu.unknown("hot", "no answer", at(3))
    assert gpu.status() == ("Unknown", "no answer")
    gpu.healthy("hot", at(4))
    gpu.unknown("", "", at(5))
    assert gpu.status() == ("Unknown", "")
    gpu.healthy("hot", at(6))
    assert gpu.status() == ("Healthy", "")


def test_a_silent_source_is_no_longer_believed_that_a_device_is_healthy() -> None:
    gpu = device(60, hot=dra.HealthRule())
    gpu.healthy("", at(0))
    assert gpu.due() == 60
    gpu.settle(at(60))
    assert gpu.status() == ("Unknown", "nothing was heard of it for 60 s")
    gpu.unhealthy("hot", "", None, at(61))
    gpu.settle(at(500))
    assert gpu.status() == ("Unhealthy", "hot")


def test_what_the_kubelet_is_not_told_is_wrong_all_the_same() -> None:
    gpu = device(app=dra.HealthRule(taint="None", report=False))
    gpu.unhealthy("app", "", None, at(0))
    assert (wrong(gpu), gpu.status()) == (["app"], ("Healthy", ""))


def test_what_was_stored_counts_before_anything_is_said() -> None:
    gpu = device(hot=dra.HealthRule(unhealthy_after=30))
    gpu.restore(HealthProblem("hot", "93 °C", None, BEGIN))
    gpu.restore(HealthProblem("of another release", "", None, BEGIN))
    assert gpu.status() == ("Unhealthy", "hot: 93 °C")
    gpu.healthy("", at(1))
    assert wrong(gpu) == []


def test_what_is_injected_stands_against_the_source_until_it_is_taken_back() -> None:
    gpu = device(hot=dra.HealthRule(), xid=dra.HealthRule(sticky=True))
    for reason in ("hot", "xid"):
        gpu.unhealthy(reason, "drill", None, at(0), injected=True)
        gpu.unhealthy(reason, "real", None, at(1))
        gpu.healthy("", at(1))
    assert gpu.to_ask() == []
    assert gpu.status() == ("Unhealthy", "hot: drill; xid: drill")
    gpu.taken_back("hot", at(2))
    gpu.taken_back("xid", at(2))
    assert (wrong(gpu), gpu.to_ask()) == (["xid"], ["xid"])


RULES: Mapping[str, dra.HealthRule] = {
    "plain": dra.HealthRule(),
    "damped": dra.HealthRule(unhealthy_after=5, healthy_after=3),
    "sticky": dra.HealthRule(sticky=True, unhealthy_after=2, healthy_after=4),
}


@given(
    st.lists(
        st.tuples(
            st.integers(0, 4),  # seconds until it
            st.sampled_from(["bad", "well", "unknown", "yes", "no", "nothing"]),
            st.sampled_from([*RULES, ""]),
        ),
        max_size=40,
    )
)
def test_any_sequence_of_reports_gives_what_a_look_at_its_whole_past_gives(
    steps: list[tuple[int, str, str]],
) -> None:
    gpu, now = DeviceConditions(RULES), 0
    past: dict[str, list[tuple[int, bool]]] = {reason: [] for reason in RULES}  # seconds, whether it spoke of bad
    model = dict.fromkeys(RULES, False)
    for wait, what, reason in steps:
        for _ in range(wait):
            now += 1
            gpu.settle(at(now))
            _look(model, past, now)
        reasons = [reason] if reason else list(RULES)
        match what:
            case "bad" if reason:
                gpu.unhealthy(reason, "", None, at(now))
                past[reason].append((now, True))
            case "well":
                gpu.healthy(reason, at(now))
                for one in reasons:
                    if not (RULES[one].sticky and model[one]):
                        past[one].append((now, False))
            case "unknown":
                gpu.unknown(reason, "", at(now))
            case "yes" | "no" if reason == "sticky" and model["sticky"]:
                gpu.asked(reason, at(now), recovered=what == "yes")
                past[reason].append((now, what == "no"))
        _look(model, past, now)
        assert wrong(gpu) == sorted(name for name, bad in model.items() if bad)


def _look(model: dict[str, bool], past: dict[str, list[tuple[int, bool]]], now: int) -> None:
    """What holds turns when everything said since long enough ago says the opposite."""
    for reason, said in past.items():
        opposite = [time for time, bad in _tail(said, differs_from=model[reason])]
        rule = RULES[reason]
        patience = rule.healthy_after if model[reason] else rule.unhealthy_after
        if opposite and now >= opposite[0] + patience:
            model[reason] = not model[reason]
            said.clear()


def _tail(said: list[tuple[int, bool]], *, differs_from: bool) -> list[tuple[int, bool]]:
    """The last reports that say the opposite of what holds, without one between that agrees with it."""
    tail: list[tuple[int, bool]] = []
    for item in reversed(said):
        if item[1] is differs_from:
            break
        tail.insert(0, item)
    return tail
