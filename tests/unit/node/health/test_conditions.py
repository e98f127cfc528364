"""The policy of one device: damping, sticky problems and consequences, with a simulated clock."""

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


def test_status_is_empty_before_the_first_report() -> None:
    assert device().status() is None


def test_device_is_unhealthy_until_its_last_problem_is_over() -> None:
    gpu = device(hot=dra.HealthRule(), xid=dra.HealthRule())
    gpu.unhealthy("hot", "93 °C", None, at(0))
    gpu.unhealthy("xid", "", None, at(1))
    assert gpu.status() == ("Unhealthy", "hot: 93 °C; xid")
    gpu.healthy("hot", at(2))
    assert gpu.status() == ("Unhealthy", "xid")
    gpu.healthy("", at(3))
    assert gpu.status() == ("Healthy", "")


def test_problem_has_the_time_of_its_first_report_and_the_text_of_the_last() -> None:
    gpu = device(xid=dra.HealthRule())
    gpu.unhealthy("xid", "XID 48", "48", at(0.5))
    gpu.unhealthy("xid", "XID 79", "79", at(7))
    assert gpu.problems() == {"xid": HealthProblem("xid", "XID 79", "79", BEGIN)}


def test_problem_takes_effect_only_after_unhealthy_after() -> None:
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


def test_problem_ends_only_after_healthy_after() -> None:
    gpu = device(hot=dra.HealthRule(healthy_after=60))
    gpu.unhealthy("hot", "", None, at(0))
    gpu.healthy("hot", at(10))
    gpu.unhealthy("hot", "", None, at(20))
    gpu.healthy("hot", at(30))
    gpu.settle(at(89))
    assert wrong(gpu) == ["hot"]
    gpu.settle(at(90))
    assert wrong(gpu) == []


def test_sticky_problem_ends_only_when_recovered_confirms_it() -> None:
    gpu = device(xid=dra.HealthRule(sticky=True))
    assert gpu.to_ask() == []
    gpu.unhealthy("xid", "", None, at(0))
    gpu.healthy("", at(1))
    gpu.healthy("xid", at(2))
    assert (wrong(gpu), gpu.to_ask()) == (["xid"], ["xid"])
    gpu.answered("xid", at(3), recovered=False)
    assert wrong(gpu) == ["xid"]
    gpu.answered("xid", at(4), recovered=True)
    assert (wrong(gpu), gpu.to_ask()) == ([], [])


def test_recovered_must_hold_for_healthy_after() -> None:
    gpu = device(xid=dra.HealthRule(sticky=True, healthy_after=60))
    gpu.unhealthy("xid", "", None, at(0))
    gpu.answered("xid", at(10), recovered=True)
    gpu.answered("xid", at(20), recovered=False)
    gpu.answered("xid", at(30), recovered=True)
    gpu.answered("xid", at(80), recovered=True)
    assert wrong(gpu) == ["xid"]
    gpu.settle(at(90))
    assert wrong(gpu) == []


def test_unknown_health_does_not_end_known_problems() -> None:
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


def test_healthy_device_becomes_unknown_after_stale_after() -> None:
    gpu = device(60, hot=dra.HealthRule())
    gpu.healthy("", at(0))
    assert gpu.due() == 60
    gpu.settle(at(60))
    assert gpu.status() == ("Unknown", "not reported for 60 s")
    gpu.unhealthy("hot", "", None, at(61))
    gpu.settle(at(500))
    assert gpu.status() == ("Unhealthy", "hot")


def test_unreported_problem_takes_effect_without_changing_the_status() -> None:
    gpu = device(app=dra.HealthRule(taint="None", report=False))
    gpu.unhealthy("app", "", None, at(0))
    assert (wrong(gpu), gpu.status()) == (["app"], ("Healthy", ""))


def test_restored_problem_is_in_effect_before_the_first_report() -> None:
    gpu = device(hot=dra.HealthRule(unhealthy_after=30))
    gpu.restore(HealthProblem("hot", "93 °C", None, BEGIN))
    gpu.restore(HealthProblem("of another release", "", None, BEGIN))
    assert gpu.status() == ("Unhealthy", "hot: 93 °C")
    gpu.healthy("", at(1))
    assert wrong(gpu) == []


def test_injected_problem_overrides_reports_until_it_is_withdrawn() -> None:
    gpu = device(hot=dra.HealthRule(), xid=dra.HealthRule(sticky=True))
    for reason in ("hot", "xid"):
        gpu.unhealthy(reason, "drill", None, at(0), injected=True)
        gpu.unhealthy(reason, "real", None, at(1))
        gpu.healthy("", at(1))
    assert gpu.to_ask() == []
    assert gpu.status() == ("Unhealthy", "hot: drill; xid: drill")
    gpu.withdraw("hot", at(2))
    gpu.withdraw("xid", at(2))
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
def test_any_sequence_of_reports_matches_a_model_of_the_whole_history(
    steps: list[tuple[int, str, str]],
) -> None:
    gpu, now = DeviceConditions(RULES), 0
    past: dict[str, list[tuple[int, bool]]] = {reason: [] for reason in RULES}  # time, unhealthy
    model = dict.fromkeys(RULES, False)
    for wait, what, reason in steps:
        for _ in range(wait):
            now += 1
            gpu.settle(at(now))
            _update_model(model, past, now)
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
                gpu.answered(reason, at(now), recovered=what == "yes")
                past[reason].append((now, what == "no"))
        _update_model(model, past, now)
        assert wrong(gpu) == sorted(name for name, bad in model.items() if bad)


def _update_model(model: dict[str, bool], past: dict[str, list[tuple[int, bool]]], now: int) -> None:
    """Flip the state once all reports of the damping period contradict it."""
    for reason, reports in past.items():
        opposite = [time for time, bad in _tail(reports, differs_from=model[reason])]
        rule = RULES[reason]
        patience = rule.healthy_after if model[reason] else rule.unhealthy_after
        if opposite and now >= opposite[0] + patience:
            model[reason] = not model[reason]
            reports.clear()


def _tail(reports: list[tuple[int, bool]], *, differs_from: bool) -> list[tuple[int, bool]]:
    """Return the latest reports that contradict the state, back to the last one that agrees with it."""
    tail: list[tuple[int, bool]] = []
    for item in reversed(reports):
        if item[1] is differs_from:
            break
        tail.insert(0, item)
    return tail
