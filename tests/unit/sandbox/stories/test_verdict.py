from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_kit.sandbox.stories.facts import ClaimFacts, ContainerFacts, PodFacts, PublishedDevice, StoryFacts
from dra_kit.sandbox.stories.model import Expectation
from dra_kit.sandbox.stories.verdict import Mismatch, compare, referenced_pods


def expect(**data: Any) -> Expectation:
    return Expectation.model_validate(data, strict=False)


def judge(kind: str, wanted: dict[str, Any], actual: dict[str, str] | None) -> tuple[Mismatch, ...]:
    pod = {"phase": "Running", "containers": {"eater": {kind: wanted}}}
    container = ContainerFacts(**{kind: actual})  # type: ignore[arg-type]
    other = ContainerFacts(
        environment={"FLAME": "7"}, device_nodes={"/dev/oven": "c 9:1"}, mounts={"/menu": "/host/menu"}
    )
    facts = StoryFacts(
        {"guest": PodFacts("Running", {"eater": container}), "cook": PodFacts("Running", {"cook": other})}
    )
    return compare(expect(pods={"guest": pod}), facts, "ns")


@pytest.mark.parametrize(
    ("kind", "wanted", "actual"),
    [
        ("device_nodes", {"/dev/oven": "c 9:1", "/dev/fridge": None}, {"/dev/oven": "c 9:1"}),
        ("device_nodes", {"/dev/oven": None}, {}),
        ("device_nodes", {"/dev/oven": {}}, {"/dev/oven": ""}),
        ("device_nodes", {"/dev/oven": {"same_as": "cook/cook//dev/oven"}}, {"/dev/oven": "c 9:1"}),
        ("mounts", {"/menu": {"pattern": ".*/menu"}, "/wine": None}, {"/menu": "/host/menu"}),
        ("mounts", {"/card": {"same_as": "cook/cook//menu"}}, {"/card": "/host/menu"}),
        ("environment", {"DOUGH": {}}, {"DOUGH": ""}),
        ("environment", {"DOUGH": "pan"}, {"DOUGH": "pan"}),
        ("environment", {"DOUGH": None}, {"OTHER": "x"}),
        ("environment", {"SLICES": {"pattern": "[0-9]+"}}, {"SLICES": "12"}),
        ("environment", {"FLAME": {"same_as": "cook/cook/FLAME"}}, {"FLAME": "7"}),
    ],
)
def test_expected_variables_device_files_and_mounts_have_no_mismatch(
    kind: str, wanted: dict[str, Any], actual: dict[str, str]
) -> None:
    assert judge(kind, wanted, actual) == ()


@pytest.mark.parametrize(
    ("wanted", "actual", "mismatch"),
    [
        ("0-3,8", "0,1,2,3,8", None),
        ("", "", None),
        ("0-3", "0-2", ("0-3", "0-2")),
        ("0-3", "", ("0-3", "all")),
        ("", "1", ("all", "1")),
        ("0", None, ("0", "not known; have the container run cat /proc/self/status")),
    ],
)
def test_cpus_are_compared_as_sets(wanted: str, actual: str | None, mismatch: tuple[str, str] | None) -> None:
    facts = StoryFacts({"guest": PodFacts("Running", {"eater": ContainerFacts(cpuset=actual)})})
    pod = {"phase": "Running", "containers": {"eater": {"cpuset": wanted}}}
    found = compare(expect(pods={"guest": pod}), facts, "ns")
    assert [(item.subject, item.expected, item.got) for item in found] == (
        [("pod guest, container eater, cpuset", *mismatch)] if mismatch else []
    )


@pytest.mark.parametrize(
    ("key", "wanted", "actual", "mismatch"),
    [
        ("memory_nodes", "0,1", "0-1", None),
        ("memory_nodes", "0", "", ("0", "all")),
        ("hugepages", {"2MB": 4}, {"2MB": 4}, None),
        ("hugepages", {}, {"2MB": 4}, ("no limit", "2MB: 4")),
        ("hugepages", {"1GB": 1, "2MB": 4}, {}, ("1GB: 1, 2MB: 4", "no limit")),
        ("hugepages", {}, None, ("no limit", "not known on a real cluster; leave it out there")),
        ("rdt_class", "gold", "gold", None),
        ("rdt_class", "", "gold", ("none", "gold")),
        ("rdt_class", "gold", "", ("gold", "none")),
        ("rdt_class", "gold", None, ("gold", "not known on a real cluster; leave it out there")),
    ],
)
def test_other_resources_are_compared(key: str, wanted: Any, actual: Any, mismatch: tuple[str, str] | None) -> None:
    facts = StoryFacts({"guest": PodFacts("Running", {"eater": ContainerFacts(**{key: actual})})})
    found = compare(expect(pods={"guest": {"phase": "Running", "containers": {"eater": {key: wanted}}}}), facts, "ns")
    assert [(item.subject, item.expected, item.got) for item in found] == (
        [(f"pod guest, container eater, {key}", *mismatch)] if mismatch else []
    )


@pytest.mark.parametrize(
    ("wanted", "actual", "mismatch"),
    [
        (["net1", "net0"], ("net0", "net1"), None),
        ([], (), None),
        (["net1"], (), ("net1", "none")),
        ([], ("net1",), ("none", "net1")),
        (["net1"], None, ("net1", "not known; have a container run cat /proc/net/dev")),
    ],
)
def test_interfaces_are_compared_in_any_order(
    wanted: list[str], actual: tuple[str, ...] | None, mismatch: tuple[str, str] | None
) -> None:
    facts = StoryFacts({"guest": PodFacts("Running", interfaces=actual)})
    found = compare(expect(pods={"guest": {"phase": "Running", "interfaces": wanted}}), facts, "ns")
    assert [(item.subject, item.expected, item.got) for item in found] == (
        [("pod guest, interfaces", *mismatch)] if mismatch else []
    )


@pytest.mark.parametrize(
    ("kind", "wanted", "actual", "told"),
    [
        ("device_nodes", {"/dev/oven": {}}, {}, ("device file /dev/oven", "there", "not there")),
        ("device_nodes", {"/dev/oven": None}, {"/dev/oven": "c 9:1"},
         ("device file /dev/oven", "not there", "'c 9:1'")),
        ("device_nodes", {"/dev/oven": "c 9:2"}, {"/dev/oven": "c 9:1"},
         ("device file /dev/oven", "'c 9:2'", "'c 9:1'")),
        ("mounts", {"/menu": "/menu"}, {}, ("mount /menu", "'/menu'", "not there")),
        ("environment", {"DOUGH": {}}, {"A": "1"}, ("DOUGH", "set", "not set")),
        ("environment", {"DOUGH": "pan"}, {"DOUGH": "thin"}, ("DOUGH", "'pan'", "'thin'")),
        ("environment", {"DOUGH": "pan"}, {"OTHER": "x"}, ("DOUGH", "'pan'", "not set")),
        ("environment", {"DOUGH": None}, {"DOUGH": ""}, ("DOUGH", "not set", "''")),
        # it has shown nothing yet, so it proves nothing
        ("environment", {"DOUGH": None}, {}, ("DOUGH", "not set", "not set")),
        ("environment", {"SLICES": {"pattern": "[0-9]+"}}, {"SLICES": "12 or so"},
         ("SLICES", "fits '[0-9]+'", "'12 or so'")),
        ("environment", {"FLAME": {"same_as": "cook/cook/FLAME"}}, {"FLAME": "8"},
         ("FLAME", "the same as cook/cook/FLAME, which is '7'", "'8'")),
        ("environment", {"FLAME": {"same_as": "cook/cook/SMOKE"}}, {"FLAME": "8"},
         ("FLAME", "the same as cook/cook/SMOKE, which is not set", "'8'")),
        (
            "mounts",
            {"/menu": None},
            None,  # a container that shows no mounts proves nothing
            ("mount /menu", "not there",
             "not there; have the container run cat /proc/self/mountinfo, where it does not"),
        ),
    ],
)  # fmt: skip
def test_different_variables_device_files_and_mounts_are_mismatches(
    kind: str, wanted: dict[str, Any], actual: dict[str, str] | None, told: tuple[str, str, str]
) -> None:
    (mismatch,) = judge(kind, wanted, actual)

    subject, expected, got = told
    assert (mismatch.subject, mismatch.expected, mismatch.got) == (
        f"pod guest, container eater, {subject}",
        expected,
        got,
    )


@pytest.mark.parametrize(
    ("wanted", "texts"),
    [("lit", ["cold", "lit, hot"]), (["lit", "hot"], ["lit, hot"]), ([], ["cold"]), (None, []), ("lit", None)],
)
def test_expected_files_have_no_mismatch(wanted: object, texts: list[str] | None) -> None:
    assert compare(expect(files={"oven/*": wanted}), StoryFacts(files={"oven/*": texts}), "ns") == ()


@pytest.mark.parametrize(
    ("wanted", "texts", "expected", "got"),
    [
        (["lit", "hot"], ["lit", "hot"], "contains 'lit' and 'hot'", "'lit' | 'hot'"),
        ("lit", [], "contains 'lit'", "it is not there"),
        ([], [], "is there", "it is not there"),
        (None, ["lit"], "is not there", "'lit'"),
    ],
)
def test_different_files_are_mismatches(wanted: object, texts: list[str], expected: str, got: str) -> None:
    (mismatch,) = compare(expect(files={"oven/*": wanted}), StoryFacts(files={"oven/*": texts}), "ns")

    assert (mismatch.subject, mismatch.expected, mismatch.got) == ("file oven/*", expected, got)


@given(st.dictionaries(st.sampled_from("ABCD"), st.text(max_size=3), min_size=1))
def test_matching_environments_pass(environment: dict[str, str]) -> None:
    assert judge("environment", dict(environment), environment) == ()


@given(
    st.dictionaries(st.sampled_from("ABCD"), st.text(max_size=2)),
    st.dictionaries(st.sampled_from("ABCD"), st.text(max_size=2), min_size=1),
)
def test_only_different_variables_are_reported(wanted: dict[str, str], actual: dict[str, str]) -> None:
    told = [mismatch.subject.rpartition(" ")[2] for mismatch in judge("environment", dict(wanted), actual)]

    assert told == [name for name, value in wanted.items() if actual.get(name) != value]


def test_pod_with_a_permanently_rejected_claim_is_not_waited_for() -> None:
    pod = PodFacts("Pending", refusal="the oven is broken")
    (mismatch,) = compare(expect(pods={"guest": {"phase": "Running"}}), StoryFacts({"guest": pod}), "ns")

    assert (mismatch.got, mismatch.final) == ("Pending, refused by the driver for good: the oven is broken", True)


@pytest.mark.parametrize(("phase", "final"), [("Pending", False), ("Succeeded", True), ("Failed", True)])
def test_exited_pod_cannot_reach_the_expected_state(phase: str, final: bool) -> None:
    (mismatch,) = compare(expect(pods={"guest": {"phase": "Running"}}), StoryFacts({"guest": PodFacts(phase)}), "ns")

    assert (mismatch.expected, mismatch.got, mismatch.final) == ("Running", phase, final)


def test_all_texts_must_be_in_one_message() -> None:
    expectation = expect(pods={"guest": {"phase": "Pending", "message": ["{namespace}/lunch", "refused"]}})

    together = StoryFacts({"guest": PodFacts("Pending", {}, ("ok", "event: home/lunch refused"))})
    apart = StoryFacts({"guest": PodFacts("Pending", {}, ("event: home/lunch", "refused"))})

    assert compare(expectation, together, "home") == ()
    (mismatch,) = compare(expectation, apart, "home")
    assert mismatch.expected == "one that contains 'home/lunch' and 'refused'"
    assert mismatch.got == "event: home/lunch | refused"


def test_the_exit_code_counts() -> None:
    pod = {"phase": "Succeeded", "containers": {"eater": {"exit_code": 0, "output": ["enjoy"]}}}
    facts = StoryFacts({"guest": PodFacts("Succeeded", {"eater": ContainerFacts(3, {}, "cold")})})

    code, output = compare(expect(pods={"guest": pod}), facts, "ns")

    assert (code.expected, code.got, code.final) == ("0", "3", True)
    assert (output.expected, output.got) == ("contains 'enjoy'", "'cold'")


def test_end_of_a_long_output_is_marked_as_such() -> None:
    pod = {"phase": "Succeeded", "containers": {"eater": {"output": ["enjoy"]}}}
    facts = StoryFacts({"guest": PodFacts("Succeeded", {"eater": ContainerFacts(0, {}, f"begin{'x' * 300}")})})

    (output,) = compare(expect(pods={"guest": pod}), facts, "ns")

    assert output.got == f"'… {'x' * 300}'"


def test_missing_object_is_a_mismatch() -> None:
    pod = {"phase": "Running", "containers": {"eater": {}}}
    expectation = expect(pods={"guest": pod, "waiter": pod}, claims={"lunch": {}})

    mismatches = compare(expectation, StoryFacts({"waiter": PodFacts("Running")}), "ns")

    assert [(item.subject, item.got) for item in mismatches] == [
        ("pod guest", "the pod does not exist"),
        ("pod waiter, container eater", "it has not"),
        ("claim lunch", "the claim does not exist"),
    ]


def test_devices_and_consumers_of_a_claim_are_compared_as_sets() -> None:
    expectation = expect(claims={"lunch": {"devices": ["b", "a"], "reserved_for": ["guest"]}})

    same = StoryFacts(claims={"lunch": ClaimFacts(("a", "b"), ("guest",))})
    other = StoryFacts(claims={"lunch": ClaimFacts((), ("guest", "waiter"))})

    assert compare(expectation, same, "ns") == ()
    assert [str(item) for item in compare(expectation, other, "ns")] == [
        "claim lunch, devices\n    expected: b, a\n    got:      none",
        "claim lunch, reserved for\n    expected: guest\n    got:      guest, waiter",
    ]


def test_referenced_pods_lists_every_pod() -> None:
    environment = {"FLAME": {"same_as": "cook/oven/FLAME"}}
    pod = {"phase": "Running", "containers": {"eater": {"environment": environment}}}

    assert referenced_pods(expect(pods={"guest": pod})) == {"guest", "cook"}


@pytest.mark.parametrize(
    ("health", "got"),
    [
        ({"lunch": ("Healthy", "Healthy")}, []),
        ({"lunch": ("Healthy", "Unhealthy")}, ["Healthy, Unhealthy"]),
        ({"dinner": ("Healthy",)}, ["not reported"]),
    ],
)
def test_all_devices_of_a_claim_must_match(health: dict[str, tuple[str, ...]], got: list[str]) -> None:
    pod = {"phase": "Running", "containers": {"eater": {"health": {"lunch": "Healthy"}}}}
    facts = StoryFacts({"guest": PodFacts("Running", {"eater": ContainerFacts(health=health)})})

    assert [mismatch.got for mismatch in compare(expect(pods={"guest": pod}), facts, "ns")] == got


def judge_attributes(wanted: dict[str, Any], actual: dict[str, Any]) -> tuple[Mismatch, ...]:
    facts = StoryFacts(devices={"nic-0": PublishedDevice("nic-0", "node-1", "nic.example", actual)})
    return compare(expect(devices={"nic-0": {"attributes": wanted}}), facts, "ns")


PUBLISHED: dict[str, Any] = {
    "model": "x550",
    "vlans": [1, 2],
    "tagged": [True],
    "resource.kubernetes.io/pcieRoot": "pci0000:00",
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_expected_attributes_have_no_mismatch(name: str) -> None:
    assert judge_attributes({name: PUBLISHED[name]}, PUBLISHED) == ()


@pytest.mark.parametrize(
    ("name", "wanted", "actual"),
    [
        ("vlans", [2, 1], "[1, 2]"),
        ("vlans", 1, "[1, 2]"),
        ("tagged", [1], "[True]"),
        ("speed", 10, "not given"),
        ("pcieRoot", "pci0000:00", 'not given; did you mean "resource.kubernetes.io/pcieRoot"?'),
        ("nic.example/model", "x550", 'not given; did you mean "model"?'),
    ],
)
def test_other_attributes_are_a_mismatch(name: str, wanted: object, actual: str) -> None:
    expected = Mismatch(f"device nic-0, attribute {name}", repr(wanted), actual)
    assert judge_attributes({name: wanted}, PUBLISHED) == (expected,)


@pytest.mark.parametrize(("wanted", "actual"), [("10Gi", "10737418240"), ("1.5", "1500m"), ("many", "many")])
def test_capacities_are_compared_as_amounts(wanted: str, actual: str) -> None:
    device = PublishedDevice("nic-0", "node-1", "nic.example", capacity={"memory": actual})
    facts = StoryFacts(devices={"nic-0": device})

    assert compare(expect(devices={"nic-0": {"capacity": {"memory": wanted}}}), facts, "ns") == ()
    (mismatch,) = compare(expect(devices={"nic-0": {"capacity": {"memory": "11Gi"}}}), facts, "ns")
    assert (mismatch.expected, mismatch.got) == ("'11Gi'", repr(actual))


TWO_POOLS = {
    "card-1/nic-0": PublishedDevice("nic-0", "card-1", "nic.example"),
    "card-2/nic-0": PublishedDevice("nic-0", "card-2", "nic.example"),
    "card-2/nic-1": PublishedDevice("nic-1", "card-2", "nic.example"),
}


@pytest.mark.parametrize("name", ["nic-1", "card-2/nic-1", "nic.example/card-2/nic-1", "card-1/nic-0"])
def test_device_of_several_pools_is_found_by_a_name_that_only_it_has(name: str) -> None:
    facts = StoryFacts(devices=TWO_POOLS)

    assert compare(expect(devices={name: {}}), facts, "ns") == ()
    (mismatch,) = compare(expect(devices={name: None}), facts, "ns")
    assert (mismatch.expected, mismatch.got) == ("is not published", "it is")


def test_name_of_several_devices_is_a_mismatch() -> None:
    facts = StoryFacts(devices=TWO_POOLS)

    (mismatch,) = compare(expect(devices={"nic-0": {}}), facts, "ns")
    names = "nic.example/card-1/nic-0 and nic.example/card-2/nic-0"
    assert mismatch.got == f"it is that of {names}; write one of these"
    assert len(compare(expect(devices={"nic-0": None}), facts, "ns")) == 1
    assert compare(expect(devices={"nic-2": None, "card-1/nic-1": None}), facts, "ns") == ()


def judge_health(wanted: dict[str, Any]) -> tuple[Mismatch, ...]:
    reported = {
        "lunch": {
            "k8s.bread.example/claim=7:bread:node-1:bread-0": "Healthy",
            "bread.example/node-1/bread-1": "Unhealthy",
        },
        "dinner": {"vendor.example/class=bread-2": "Healthy"},
        "wine.example/bottle": {"bottle-0": "Healthy"},  # of a device plugin
    }
    container = ContainerFacts(
        health={claim: tuple(of.values()) for claim, of in reported.items()}, device_health=reported
    )
    pod = {"phase": "Running", "containers": {"eater": {"health": wanted}}}
    facts = StoryFacts({"guest": PodFacts("Running", {"eater": container})})
    return compare(expect(pods={"guest": pod}), facts, "ns")


@pytest.mark.parametrize(
    "wanted",
    [
        {"dinner": "Healthy"},
        {"dinner": {"bread-2": "Healthy"}},
        {"lunch": {"bread-0": "Healthy", "bread-1": "Unhealthy"}},
        {"lunch": {"node-1/bread-0": "Healthy"}},
        {"wine.example/bottle": {"bottle-0": "Healthy"}},
    ],
)
def test_expected_health_has_no_mismatch(wanted: dict[str, Any]) -> None:
    assert judge_health(wanted) == ()


@pytest.mark.parametrize(
    ("wanted", "told"),
    [
        ({"lunch": "Healthy"}, ("health of lunch", "Healthy", "Healthy, Unhealthy")),
        ({"lunch": {"bread-1": "Healthy"}}, ("health of device bread-1 of lunch", "Healthy", "Unhealthy")),
        ({"lunch": {"bread": "Healthy"}}, ("health of device bread of lunch", "Healthy", "not reported")),
        ({"lunch": {"node-2/bread-0": "Healthy"}},
         ("health of device node-2/bread-0 of lunch", "Healthy", "not reported")),
        ({"supper": {"bread-0": "Healthy"}}, ("health of device bread-0 of supper", "Healthy", "not reported")),
    ],
)  # fmt: skip
def test_other_health_is_a_mismatch(wanted: dict[str, Any], told: tuple[str, str, str]) -> None:
    what, expected, actual = told
    assert judge_health(wanted) == (Mismatch(f"pod guest, container eater, {what}", expected, actual),)
