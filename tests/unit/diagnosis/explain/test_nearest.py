from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dra_kit.diagnosis.explain.cluster import ClusterView, model_of_claim
from dra_kit.diagnosis.explain.remedies import AllocationTrials, WorkBudget, suggest_changes
from dra_kit.diagnosis.explain.selectors import shorten
from dra_kit.diagnosis.explain.verdicts import JudgedRequest, Reason, RemedyKind
from dra_kit.kubernetes.allocator.selectors import CelEvaluator
from dra_kit.kubernetes.release import DEFAULT
from tests.unit.diagnosis.explain.world import (
    PIZZA,
    Document,
    claim,
    cluster,
    device,
    device_class,
    explain,
    held,
    pizza,
    request,
    slice_of,
)

Values = tuple[int, int, int]

BRIE = f'{PIZZA}.cheese == "brie"'
TAINT = {"key": "broken", "effect": "NoSchedule"}

devices = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1), st.integers(0, 1)), min_size=1, max_size=8)


def world(values: Sequence[Values]) -> Document:
    return slice_of(*[
        device(f"d{place}", attributes={name: {"int": value} for name, value in zip("abc", each, strict=True)})
        for place, each in enumerate(values)
    ])  # fmt: skip


def conditions() -> list[str]:
    return [f"{PIZZA}.{name} == 1" for name in "abc"]


@given(devices)
def test_without_the_condition_the_reported_number_of_devices_fits(values: list[Values]) -> None:
    where = cluster(world(values))
    explanation = explain(where, claim(request("r", 1, " && ".join(conditions()))))

    for miss in explanation.nearest:
        remaining = [each for each in conditions() if f"without `{shorten(each)}`" not in miss.change]
        relaxed = explain(where, claim(request("r", 1, " && ".join(remaining))))
        assert len(remaining) == (1 if " and " in miss.change else 2)
        assert len(relaxed.requests[0].choices[0].fits) == miss.devices
        assert relaxed.good == miss.enough


@given(devices)
def test_one_change_is_suggested_wherever_it_suffices(values: list[Values]) -> None:
    explanation = explain(cluster(world(values)), claim(request("r", 1, " && ".join(conditions()))))

    expected = {f"without `{name} == 1`" for place, name in enumerate("abc")
                if any(sum(each) == 2 and not each[place] for each in values)}  # fmt: skip
    suggested = {miss.change for miss in explanation.nearest}
    if expected or explanation.good:
        assert suggested == (set() if explanation.good else expected)
    else:  # two changes are suggested if one does not suffice
        pairs = {" and ".join(f"without `{name} == 1`" for name, value in zip("abc", each, strict=True) if not value)
                 for each in values if sum(each) == 1}  # fmt: skip
        assert suggested <= pairs
        assert bool(suggested) == bool(pairs)


def test_waiting_for_devices_comes_before_taking_others() -> None:
    where = cluster(slice_of(pizza("a", "brie"), pizza("b"), pizza("c")), claims=[held("lunch", "a")])

    explanation = explain(where, claim(request("r", 1, f'{PIZZA}.cheese == "brie"')))

    assert [miss.change for miss in explanation.nearest] == [
        "once other claims release their devices",
        'without `cheese == "brie"`',
    ]


def test_remedies_that_name_a_claim_each_count_as_one_change() -> None:
    """A remedy's text may differ between devices that the same change makes fit."""
    where = cluster(slice_of(pizza("a"), pizza("b")), claims=[held("lunch", "a"), held("dinner", "b")])
    wanted = claim(request("r", 2))
    requests = [naming_claims(each) for each in explain(where, wanted).requests]

    [miss] = suggest_changes(
        model_of_claim(wanted, where.gates),
        requests,
        AllocationTrials(where, CelEvaluator(DEFAULT), WorkBudget(devices=2)),
    )

    assert miss.change.startswith("once default/")
    assert (miss.devices, miss.enough) == (2, True)


def naming_claims(request_: JudgedRequest) -> JudgedRequest:
    """Return the request with remedies that say which claims hold each device."""

    def named(reason: Reason) -> Reason:
        assert reason.remedy is not None
        assert reason.remedy.kind is RemedyKind.RELEASE
        text = f"once {', '.join(reason.details['claims'])} releases its devices"
        return Reason(reason.check, reason.text, brief=reason.brief, remedy=replace(reason.remedy, text=text),
                      details=reason.details)  # fmt: skip

    [judged] = request_.choices
    devices = [replace(each, reasons=tuple(map(named, each.reasons))) for each in judged.devices]
    return replace(request_, choices=(replace(judged, devices=tuple(devices)),))


def test_two_conditions_with_the_same_short_text_are_two_changes() -> None:
    domains = ("a.example.com", "b.example.com")
    where = cluster(slice_of(device("d", attributes={f"{domain}/x": {"int": 0} for domain in domains})))
    both = " && ".join(f'device.attributes["{domain}"].x == 1' for domain in domains)

    assert changes(where, claim(request("r", 1, both))) == ["without `x == 1` and without `x == 1`"]


def changes(where: ClusterView, wanted: Document) -> list[str]:
    return [miss.change for miss in explain(where, wanted).nearest]


def test_an_insufficient_change_is_not_suggested_if_another_suffices() -> None:
    where = cluster(slice_of(pizza("a", "brie"), pizza("b")))

    assert changes(where, claim(request("r", 3, BRIE))) == ["with count: 1"]


def test_the_closest_change_is_suggested_where_none_suffices() -> None:
    where = cluster(slice_of(pizza("a"), pizza("b"), pizza("c", "edam", taints=[TAINT])))
    wanted = claim(request("r", 4, BRIE), request("other", 1, 'device.driver == "absent.example"'))

    [miss] = explain(where, wanted).nearest

    assert (miss.change, miss.devices, miss.enough) == ('without `cheese == "brie"`', 2, False)


def test_another_condition_and_a_lower_count_are_suggested_where_neither_suffices() -> None:
    where = cluster(slice_of(pizza("a"), pizza("b"), pizza("c", "edam", taints=[TAINT])))

    [miss] = explain(where, claim(request("r", 4, BRIE))).nearest

    assert (miss.change, miss.devices, miss.enough) == ('without `cheese == "brie"` and with count: 2', None, True)
    assert explain(where, claim(request("r", 2))).good
    assert not explain(where, claim(request("r", 3))).good


def test_two_changes_are_suggested_where_one_does_not_suffice() -> None:
    where = cluster(slice_of(pizza("a"), pizza("b"), pizza("c", "edam", taints=[TAINT])))

    [miss] = explain(where, claim(request("r", 3, BRIE))).nearest

    assert miss.change == 'without `cheese == "brie"` and with a toleration of the taint broken'
    assert (miss.devices, miss.enough) == (3, True)


def test_devices_of_another_driver_are_never_suggested() -> None:
    of_driver = device_class("any", 'device.driver == "nic.example.com"')
    where = cluster(slice_of(pizza("a")), classes=[of_driver])

    explanation = explain(where, claim(request()))

    assert explanation.nearest == ()
    assert any("driver nic.example.com has published nothing" in blocker for blocker in explanation.blockers)


def test_the_highest_available_count_is_suggested() -> None:
    where = cluster(slice_of(*(pizza(name) for name in "abcd")))

    assert changes(where, claim(request("r", 5))) == ["with count: 4"]


def test_changes_of_the_claim_come_before_changes_of_the_class() -> None:
    of_class = device_class("any", f'{PIZZA}.cheese != "gouda"')
    where = cluster(slice_of(pizza("a", "gouda"), pizza("b", "edam"), pizza("c", "gouda")), classes=[of_class])

    assert changes(where, claim(request("r", 1, f'{PIZZA}.cheese == "gouda"'))) == [
        'without `cheese == "gouda"`',
        'without `cheese != "gouda"` (class any)',
    ]


def test_a_change_that_makes_another_condition_fail_is_not_suggested() -> None:
    guarded = f'device.allowMultipleAllocations && {PIZZA}.cheese == "brie"'
    where = cluster(slice_of(device("a"), pizza("b", "brie")))

    assert changes(where, claim(request("r", 1, guarded))) == [
        'without `allowMultipleAllocations == true` and without `cheese == "brie"`'
    ]


def test_a_violated_constraint_can_be_dropped() -> None:
    where = cluster(slice_of(pizza("a", "brie"), pizza("b", "edam"), pizza("c", "brie")))
    wanted = claim(request("r", 3), constraints=[{"matchAttribute": "gpu.example.com/cheese"}])

    assert changes(where, wanted) == [
        "with count: 2",
        "without the constraint matchAttribute: gpu.example.com/cheese",
    ]


def test_a_change_that_satisfies_only_one_of_two_requests_is_not_enough() -> None:
    where = cluster(slice_of(pizza("a"), pizza("b")))

    [miss] = explain(where, claim(request("one", 1, BRIE), request("two", 1, BRIE))).nearest

    assert not miss.enough


def test_waiting_does_not_help_if_a_constraint_cannot_be_satisfied() -> None:
    where = cluster(slice_of(pizza("a", "brie"), pizza("b", "edam")), claims=[held("lunch", "a")])
    wanted = claim(request("r", 2), constraints=[{"matchAttribute": "gpu.example.com/cheese"}])

    assert changes(where, wanted) == ["with count: 1"]


@given(devices, st.integers(2, 4))
def test_the_claim_fits_with_the_suggested_count_but_not_with_one_more(values: list[Values], count: int) -> None:
    where = cluster(world(values))
    same = [{"matchAttribute": "gpu.example.com/a"}]
    offered = [
        int(change.removeprefix("with count: "))
        for change in changes(where, claim(request("r", count), constraints=same))
        if change.startswith("with count")
    ]

    for less in offered:
        assert less < count
        assert explain(where, claim(request("r", less), constraints=same)).good
        assert not explain(where, claim(request("r", less + 1), constraints=same)).good


def test_a_taint_can_be_tolerated() -> None:
    where = cluster(slice_of(pizza("a", taints=[TAINT])))

    assert [miss.change for miss in explain(where, claim(request())).nearest] == [
        "with a toleration of the taint broken"
    ]


@given(devices, st.integers(1, 3))
def test_a_claim_with_the_devices_of_a_suggestion_fits(values: list[Values], count: int) -> None:
    where = cluster(world(values))
    same = [{"matchAttribute": "gpu.example.com/a"}]
    wanted = claim(request("r", count, " && ".join(conditions())), constraints=same)

    for miss in explain(where, wanted).nearest:
        if miss.enough and len(miss.manifests) == 1 and "devices" in miss.manifests[0]:
            changed = {**wanted["spec"]["devices"], **miss.manifests[0]["devices"]}
            assert explain(where, {**wanted, "spec": {"devices": changed}}).good


def test_a_suggestion_has_what_changes_as_manifests() -> None:
    where = cluster(slice_of(pizza("a", taints=[TAINT])))

    [miss] = explain(where, claim(request())).nearest

    [tolerated] = miss.manifests[0]["devices"]["requests"][0]["exactly"]["tolerations"]
    assert tolerated["key"] == "broken"


def test_waiting_for_others_changes_no_manifest() -> None:
    where = cluster(slice_of(pizza("a")), claims=[held("lunch", "a")])

    [miss] = explain(where, claim(request())).nearest

    assert miss.manifests == ()
