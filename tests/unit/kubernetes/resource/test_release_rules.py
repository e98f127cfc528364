"""Rules that changed with a release: each in the release before and since."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from dra_kit.kubernetes.release import Release
from dra_kit.kubernetes.resource import v1
from dra_kit.kubernetes.resource.conversion import V1, V1BETA1, errors_in_version
from dra_kit.kubernetes.resource.field_errors import ErrorKind, FieldError
from dra_kit.kubernetes.resource.new_object import RESOURCE_KINDS, check_new_object
from dra_kit.kubernetes.resource.validation.claim_status import validate_claim_status, validate_device_statuses
from dra_kit.kubernetes.resource.validation.claims import (
    validate_claim_spec,
    validate_claim_spec_update,
    validate_template_update,
)
from dra_kit.kubernetes.resource.validation.devices import validate_device_fields
from dra_kit.kubernetes.resource.validation.fields import validate_conditions, validate_object_meta
from dra_kit.kubernetes.resource.validation.pod_groups import validate_pod_group
from dra_kit.kubernetes.resource.validation.slices import (
    taint_rule_warnings,
    validate_slice,
    validate_taint_rule_status,
)

BEFORE, SINCE = Release.parse("1.37"), Release.parse("1.38")
ONE_SLASH = "must not contain more than one slash"


def slice_(*devices: dict[str, Any], **spec: Any) -> v1.ResourceSlice:
    pool = {"name": "p", "generation": 1, "resourceSliceCount": 1}
    named = [{"name": f"d{i}", **device} for i, device in enumerate(devices)]
    nodes = {} if "perDeviceNodeSelection" in spec else {"nodeName": "n"}
    return v1.ResourceSlice.model_validate(
        {"spec": {"driver": "d.example", "pool": pool, **nodes, "devices": named, **spec}}
    )


def claim(**body: Any) -> v1.ResourceClaimSpec:
    exactly = {"deviceClassName": "c", "allocationMode": "ExactCount", "count": 1, **body}
    return v1.ResourceClaimSpec.model_validate({"devices": {"requests": [{"name": "r", "exactly": exactly}]}})


def device(**fields: Any) -> v1.Device:
    return v1.Device.model_validate({"name": "d", **fields})


def texts(errors: list[FieldError]) -> list[str]:
    return [str(error) for error in errors]


SELECTOR = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "Exists"}]}] * 2}
MAPPED = {"cpu": {"mapping": {"capacityKey": "a/b/c", "capacityMultiplier": "1"}}}


@pytest.mark.parametrize(
    ("resource_slice", "before", "since"),
    [
        (slice_({"attributes": {"a/b/c": {"int": 1}}}), "", f'attributes: Invalid value: "a/b/c": {ONE_SLASH}'),
        (slice_({"capacity": {"a/b/c": {"value": "1"}}}), "", f'capacity: Invalid value: "a/b/c": {ONE_SLASH}'),
        (slice_({"attributes": {"a": {"version": f"{10**18}.0.0"}}}), "", "with at most 18 digits in numbers"),
        (slice_({"attributes": {"a": {"version": f"1.0.0-{10**18}"}}}), "", "with at most 18 digits in numbers"),
        (slice_({"attributes": {"a": {"version": f"1.0.0-x{10**18}"}}}), "", ""),
        (slice_({"attributes": {"a": {"version": f"{10**18 - 1}.0.0+{10**18}"}}}), "", ""),
        (
            slice_({"nodeSelector": SELECTOR}, perDeviceNodeSelection=True),
            "",
            "must have exactly one node selector term",
        ),
        (slice_({"nodeAllocatableResources": MAPPED}), 'Not found: "a/b/c"', ONE_SLASH),
        (
            slice_(
                {
                    "nodeAllocatableResources": {"cpu": {"mapping": {"capacityKey": "m"}}},
                    "capacity": {"m": {"value": "1"}},
                }
            ),
            "capacityMultiplier is required when capacityKey is set",
            "capacityMultiplier: Required value: must be set when capacityKey is set",
        ),
    ],
)
def test_devices(resource_slice: v1.ResourceSlice, before: str, since: str) -> None:
    for release, expected in ((BEFORE, before), (SINCE, since)):
        found = texts(validate_slice(resource_slice, release=release))
        assert len(found) == bool(expected)
        assert all(expected in text for text in found)


@pytest.mark.parametrize(
    ("requests", "since"),
    [
        ({"a/b/c": "1"}, f'spec.devices.requests[0].exactly.capacity.requests: Invalid value: "a/b/c": {ONE_SLASH}'),
        ({"m": "-1"}, 'spec.devices.requests[0].exactly.capacity.requests[m]: Invalid value: "-1": must be greater'),
        ({f"m{i}": "1" for i in range(33)}, "requests: Too many: 33: must have at most 32 items"),
        ({f"m{i}": "0" for i in range(32)}, ""),
    ],
)
def test_requested_capacities_are_checked_since_1_38(requests: dict[str, str], since: str) -> None:
    spec = claim(capacity={"requests": requests})

    assert validate_claim_spec(spec, BEFORE) == []
    found = texts(validate_claim_spec(spec, SINCE))
    assert len(found) == bool(since)
    assert all(since in text for text in found)


@pytest.mark.parametrize("field", ["matchAttribute", "distinctAttribute"])
def test_constraints_name_attributes_with_one_slash_since_1_38(field: str) -> None:
    devices = {"requests": [{"name": "r", "exactly": {"deviceClassName": "c", "allocationMode": "All"}}]}
    spec = v1.ResourceClaimSpec.model_validate({"devices": {**devices, "constraints": [{field: "a/b/c"}]}})

    assert validate_claim_spec(spec, BEFORE) == []
    assert ONE_SLASH in str(validate_claim_spec(spec, SINCE))


def test_consumed_capacities_are_checked_since_1_38() -> None:
    result = {
        "request": "r",
        "driver": "d.example",
        "pool": "p",
        "device": "d",
        "consumedCapacity": {"m": "-1", "a/b/c": "1"},
    }
    document = {
        "metadata": {"name": "c"},
        "spec": claim().to_json(),
        "status": {"allocation": {"devices": {"results": [result]}}},
    }
    written = v1.ResourceClaim.model_validate(document)

    before, since = (
        validate_claim_status(written, (), v1.ResourceClaimStatus(), release) for release in (BEFORE, SINCE)
    )

    assert before == []
    where = "status.allocation.devices.results[0].consumedCapacity"
    assert [error.path for error in since] == [where, f"{where}[m]"]


def test_stored_capacities_of_a_template_stay_valid() -> None:
    def template(label: str, amount: str) -> v1.ResourceClaimTemplate:
        spec = claim(capacity={"requests": {"a/b/c": amount}}).to_json()
        return v1.ResourceClaimTemplate.model_validate(
            {"metadata": {"name": "t", "labels": {"a": label}}, "spec": {"spec": spec}}
        )

    assert validate_template_update(template("x", "1"), template("y", "1"), SINCE) == []
    assert [error.path for error in validate_template_update(template("x", "2"), template("x", "1"), SINCE)] == [
        "spec.spec.devices.requests[0].exactly.capacity.requests", "spec"
    ]  # fmt: skip


def test_unchanged_devices_are_not_checked_again_since_1_38() -> None:
    stored = slice_({"attributes": {"a/b/c": {"int": 1}, "x": {}}})
    newer = stored.model_copy(
        update={
            "spec": stored.spec.model_copy(
                update={"pool": v1.ResourcePool(name="p", generation=2, resource_slice_count=1)}
            )
        }
    )

    assert len(validate_slice(newer, old=stored, release=BEFORE)) == 1
    assert validate_slice(newer, old=stored, release=SINCE) == []


def test_changed_list_checks_every_device_since_1_38() -> None:
    policy = {"capacity": {"m": {"value": "1", "requestPolicy": {"default": "1"}}}}
    stored, changed = slice_(policy), slice_(policy, {})

    assert validate_slice(changed, old=stored, release=BEFORE) == []
    assert [error.path for error in validate_slice(changed, old=stored, release=SINCE)] == [
        "spec.devices[0].capacity[m].requestPolicy"
    ]


def test_choice_of_nodes_is_checked_again_when_it_moves_to_devices() -> None:
    stored, moved = slice_({}), slice_({}, perDeviceNodeSelection=True)

    for release in (BEFORE, SINCE):
        assert "spec.devices[0]" in [error.path for error in validate_slice(moved, old=stored, release=release)]


def test_duplicate_condition_is_shown_whole_since_1_38() -> None:
    condition = v1.Condition.model_validate(
        {"type": "A", "status": "True", "reason": "R", "lastTransitionTime": "2024-01-02T03:04:05Z"}
    )

    [before], [since] = (validate_taint_rule_status([condition] * 2, release) for release in (BEFORE, SINCE))

    assert str(before) == 'status.conditions[1]: Duplicate value: "A"'
    assert str(since).startswith('status.conditions[1]: Duplicate value: {"type":"A"')
    assert (before.declarative, since.declarative) == (False, True)


def two_requests(release: Release) -> list[FieldError]:
    twice = [*claim().to_json()["devices"]["requests"]] * 2
    return validate_claim_spec(v1.ResourceClaimSpec.model_validate({"devices": {"requests": twice}}), release)


def two_consumptions(release: Release) -> list[FieldError]:
    consumed = {"counterSet": "s", "counters": {"n": {"value": "1"}}}
    return validate_device_fields(device(consumesCounters=[consumed] * 2), "spec.devices[0]", release)


def two_statuses(release: Release) -> list[FieldError]:
    place = {"driver": "d.example", "pool": "p", "device": "a"}
    status = v1.AllocatedDeviceStatus.model_validate(place)
    result = v1.DeviceRequestAllocationResult.model_validate({"request": "r", **place})
    return validate_device_statuses([status] * 2, [result], release)


@pytest.mark.parametrize(
    ("errors_of", "item", "field", "value", "whole"),
    [
        (two_requests, "spec.devices.requests[1]", "name", '"r"', '{"name":"r","exactly":'),
        (two_consumptions, "spec.devices[0].consumesCounters[1]", "counterSet", '"s"', '{"counterSet":"s"'),
        (
            two_statuses,
            "status.devices[1]",
            "deviceID",
            '{"Driver":{},"Pool":{},"Device":{},"ShareID":{}}',
            '{"driver"',
        ),
    ],
)
def test_duplicate_item_is_shown_by_what_repeats_until_1_36(
    errors_of: Callable[[Release], list[FieldError]], item: str, field: str, value: str, whole: str
) -> None:
    [oldest], [older], [newer] = (
        texts(errors_in_version(errors_of(release), V1, release))
        for release in (Release.parse("1.34"), Release.parse("1.36"), Release.parse("1.37"))
    )

    assert oldest == f"{item}.{field}: Duplicate value: {value}"
    assert older == f"{item}: Duplicate value: {value}"
    assert newer.startswith(f"{item}: Duplicate value: {whole}")


@pytest.mark.parametrize(
    ("release", "text"), [(BEFORE, "Required value: must not be empty"), (SINCE, "Required value")]
)
def test_missing_field_of_an_owner_has_no_text_since_1_38(release: Release, text: str) -> None:
    owner = {"apiVersion": "v1", "kind": "Node", "name": "n"}
    obj = {"metadata": {"name": "c", "namespace": "n", "ownerReferences": [owner]}, "spec": claim().to_json()}

    result = check_new_object(obj, RESOURCE_KINDS["ResourceClaim"], release)

    assert texts(list(result.errors)) == [f"metadata.ownerReferences[0].uid: {text}"]


@pytest.mark.parametrize(("release", "errors"), [(BEFORE, 1), (SINCE, 0)])
def test_priority_of_a_pod_group_is_unlimited_since_1_38(release: Release, errors: int) -> None:
    group = {"spec": {"schedulingPolicy": {"basic": {}}, "priority": 1_000_000_001}}

    assert len(validate_pod_group(group, release=release)) == errors


@pytest.mark.parametrize(
    ("selector", "warned"),
    [({}, True), (None, False), ({"driver": "d"}, False), ({"pool": "p"}, False), ({"device": ""}, False)],
)
def test_rule_that_selects_every_device_is_warned_about_since_1_38(
    selector: dict[str, str] | None, warned: bool
) -> None:
    spec = {"taint": {"key": "k", "effect": "NoSchedule"}} | ({} if selector is None else {"deviceSelector": selector})
    rule = v1.DeviceTaintRule.model_validate({"metadata": {"name": "r"}, "spec": spec})

    assert taint_rule_warnings(rule, BEFORE) == []
    assert bool(taint_rule_warnings(rule, SINCE)) is warned


OLDEST, NEXT = Release.parse("1.34"), Release.parse("1.35")
COUNTERS = {"memory": {"value": "1"}}
TAINT = {"key": "example.com/k", "effect": "NoSchedule"}


def taints(number: int) -> dict[str, Any]:
    return {"taints": [TAINT] * number}


@pytest.mark.parametrize(
    ("resource_slice", "before", "since"),
    [
        (slice_(taints(4)), "", ""),
        (slice_(taints(5)), "spec.devices[0].taints: Too many: 5: must have at most 4 items", ""),
        (slice_(taints(17)), "must have at most 4 items", "must have at most 16 items"),
        (slice_(taints(1), *[{}] * 63), "", ""),
        (slice_(taints(1), *[{}] * 64), "", "spec.devices: Too many: 65: must have at most 64 items"),
        (slice_(*[{}] * 128), "", ""),
        (slice_(sharedCounters=[{"name": f"s{i}", "counters": COUNTERS} for i in range(9)]), "", "Too many: 9"),
        (
            slice_(sharedCounters=[{"name": "s", "counters": {f"c{i}": {"value": "1"} for i in range(33)}}]),
            "the total number of shared counters must not exceed 32",
            "Too many: 33",
        ),
    ],
)
def test_limits_of_slices_since_1_35(resource_slice: v1.ResourceSlice, before: str, since: str) -> None:
    for release, expected in ((OLDEST, before), (NEXT, since)):
        found = texts(validate_slice(resource_slice, release=release))
        assert bool(found) == bool(expected)
        assert not expected or any(expected in text for text in found)


def test_device_consumes_as_many_sets_as_it_likes_before_1_35() -> None:
    names = ("a", "b", "c")
    device = {"name": "d", "consumesCounters": [{"counterSet": name, "counters": COUNTERS} for name in names]}
    sets = [{"name": name, "counters": COUNTERS} for name in names]

    assert validate_slice(slice_(sharedCounters=sets, devices=[device]), release=OLDEST) == []
    found = texts(validate_slice(slice_(device), release=NEXT))
    assert found == ["spec.devices[0].consumesCounters: Too many: 3: must have at most 2 items"]


@pytest.mark.parametrize(("amount", "before"), [(33, 1), (32, 0)])
def test_device_consumes_at_most_32_counters_of_all_sets_before_1_35(amount: int, before: int) -> None:
    parts = {"a": range(20), "b": range(20, amount)}
    sets = [{"name": name, "counters": {f"c{i}": {"value": "1"} for i in part}} for name, part in parts.items()]
    device = {"name": "d", "consumesCounters": [{**one, "counterSet": one["name"]} for one in sets]}
    found = texts(validate_slice(slice_(sharedCounters=sets, devices=[device]), release=OLDEST))

    assert len([text for text in found if text.startswith("spec.devices[0]: Invalid value: 33")]) == before


def test_devices_of_a_slice_consume_at_most_1024_counters_before_1_35() -> None:
    counters = {f"c{i}": {"value": "1"} for i in range(32)}
    consumes = {"consumesCounters": [{"counterSet": "s", "counters": counters}]}
    devices = [{"name": f"d{i}", **consumes} for i in range(33)]
    sets = [{"name": "s", "counters": counters}]

    assert validate_slice(slice_(sharedCounters=sets, devices=devices[:32]), release=OLDEST) == []
    assert len(validate_slice(slice_(sharedCounters=sets, devices=devices), release=OLDEST)) == 1


@pytest.mark.parametrize(
    ("limits", "before", "since"),
    [
        ({"default": "2", "min": "1", "step": "-1"}, 0, 1),
        ({"default": "2", "min": "1", "step": "0"}, 1, 1),
        ({"default": "1", "min": "-1", "step": "1"}, 0, 1),
        ({"default": "2", "min": "1", "step": "1"}, 0, 0),
    ],
)
def test_steps_are_positive_since_1_37(limits: dict[str, str], before: int, since: int) -> None:
    policy = {"default": limits["default"], "validRange": {"min": limits["min"], "step": limits["step"]}}
    capacity = {"capacity": {"m": {"value": "8", "requestPolicy": policy}}, "allowMultipleAllocations": True}

    assert len(validate_slice(slice_(capacity), release=Release.parse("1.36"))) == before
    assert len(validate_slice(slice_(capacity), release=Release.parse("1.37"))) == since


@pytest.mark.parametrize("step", ["18446744073709551616", "16Ei", "1e30", "36893488147419103232", "1e-30"])
def test_no_step_stops_the_validation(step: str) -> None:
    policy = {"default": "2", "validRange": {"min": "1", "step": step}}
    capacity = {"capacity": {"m": {"value": "1e31", "requestPolicy": policy}}, "allowMultipleAllocations": True}

    for version in ("1.34", "1.36", "1.37", "1.38"):
        validate_slice(slice_(capacity), release=Release.parse(version))


@pytest.mark.parametrize(
    ("constraint", "before", "since"),
    [
        ({"matchAttribute": "Vendor.Example.com/model"}, 0, 1),
        ({"distinctAttribute": "Vendor.Example.com/model"}, 0, 1),
        ({"matchAttribute": "vendor.example.com/model"}, 0, 0),
        ({"matchAttribute": "vendor_example/model"}, 1, 1),
        ({"matchAttribute": "example.com/model", "distinctAttribute": "bad"}, 0, 1),
        ({"distinctAttribute": "bad"}, 1, 1),
    ],
)
def test_names_of_attributes_in_constraints_since_1_37(constraint: dict[str, str], before: int, since: int) -> None:
    devices = {"requests": [{"name": "r", "exactly": {"deviceClassName": "c", "allocationMode": "All"}}]}
    spec = v1.ResourceClaimSpec.model_validate({"devices": {**devices, "constraints": [constraint]}})

    assert len(validate_claim_spec(spec, Release.parse("1.36"))) == before
    assert len(validate_claim_spec(spec, Release.parse("1.37"))) == since


@pytest.mark.parametrize(("release", "errors"), [("1.36", 0), ("1.37", 1)])
def test_tolerations_of_results_are_checked_since_1_37(release: str, errors: int) -> None:
    tolerations = {"tolerations": [{"key": "a b", "operator": "Exists"}]}
    result = {"request": "r", "driver": "d.example", "pool": "p", "device": "d", **tolerations}
    written = v1.ResourceClaim.model_validate(
        {
            "metadata": {"name": "c"},
            "spec": claim().to_json(),
            "status": {"allocation": {"devices": {"results": [result]}}},
        }
    )

    found = validate_claim_status(written, (), v1.ResourceClaimStatus(), Release.parse(release))

    assert len(found) == errors


def counters(number: int, first: int = 0) -> dict[str, dict[str, str]]:
    return {f"c{first + i}": {"value": "1"} for i in range(number)}


def sets(*sizes: int) -> list[dict[str, Any]]:
    return [{"name": f"s{i}", "counters": counters(size)} for i, size in enumerate(sizes)]


def consumes(*sizes: int) -> dict[str, Any]:
    return {"consumesCounters": [{"counterSet": f"s{i}", "counters": counters(size)} for i, size in enumerate(sizes)]}


TAINT = {"key": "hot", "effect": "NoSchedule", "timeAdded": "2026-01-01T00:00:00Z"}


@pytest.mark.parametrize(
    ("resource_slice", "before", "since"),
    [
        (slice_({"taints": [TAINT] * 4}), "", ""),
        (slice_({"taints": [TAINT] * 5}), "spec.devices[0].taints: Too many: 5: must have at most 4 items", ""),
        (slice_({"taints": [TAINT] * 17}), "at most 4", "at most 16"),
        (slice_({"taints": [TAINT]}, *[{}] * 64), "", "at most 64"),
        (slice_(*[{}] * 129), "at most 128", "at most 128"),
        (slice_(sharedCounters=sets(*[1] * 9)), "", "spec.sharedCounters: Too many: 9: must have at most 8 items"),
        (slice_(sharedCounters=sets(32)), "", ""),
        (
            slice_(sharedCounters=sets(32, 32)),
            "spec.sharedCounters: Invalid value: 64: the total number of shared counters must not exceed 32",
            "",
        ),
    ],
)
def test_limits_of_slices_are_by_set_since_1_35(resource_slice: v1.ResourceSlice, before: str, since: str) -> None:
    if resource_slice.spec.shared_counters:  # without devices, which may not be beside them since 1.35
        spec = resource_slice.spec.model_dump(by_alias=True, exclude_unset=True, mode="json")
        resource_slice = v1.ResourceSlice.model_validate({"spec": {k: v for k, v in spec.items() if k != "devices"}})
    for version, expected in (("1.34", before), ("1.35", since)):
        found = texts(validate_slice(resource_slice, release=Release.parse(version)))

        assert len(found) == bool(expected), version
        assert expected in "".join(found)


@pytest.mark.parametrize(
    ("sizes", "before", "since"),
    [
        ((1, 1), "", ""),
        ((1, 1, 1), "", "spec.devices[0].consumesCounters: Too many: 3: must have at most 2 items"),
        ((20, 20), "spec.devices[0]: Invalid value: 40: the total number of counters must not exceed 32", ""),
    ],
)
def test_limits_of_a_device_are_by_set_since_1_35(sizes: tuple[int, ...], before: str, since: str) -> None:
    for version, expected in (("1.34", before), ("1.35", since)):
        found = texts(validate_device_fields(device(**consumes(*sizes)), "spec.devices[0]", Release.parse(version)))

        assert found == [expected] * bool(expected), version


def test_devices_of_1_34_consume_1024_counters_in_total() -> None:
    old = slice_(*[consumes(32)] * 33, sharedCounters=sets(32))

    found = texts(validate_slice(old, release=Release.parse("1.34")))

    assert found == ["spec.devices: Invalid value: 1056: the total number of counters in devices must not exceed 1024"]


@pytest.mark.parametrize(
    ("bounds", "before", "since"),
    [
        ({"min": "0", "step": "1", "max": "10E"}, "", 'validRange.max: Invalid value: "10E": must not be larger than'),
        ({"min": "-1", "step": "1"}, "", "must be greater than or equal to 0"),
        ({"min": "0", "step": "-1"}, "", "must be greater than zero"),
        ({"min": "0", "step": "0"}, "must be greater than zero", "must be greater than zero"),
        ({"min": "0", "step": "3"}, "value is not a multiple of a given step", "value is not a multiple"),
        ({"min": "2"}, 'validRange.min: Invalid value: "1": default is less', 'validRange.default: Invalid value: "1"'),
        (
            {"min": "0", "max": "0"},
            'validRange.max: Invalid value: "1": default is more than max',
            'validRange.default: Invalid value: "1": default is more than max',
        ),
    ],
)
def test_ranges_of_policies_fit_an_int64_since_1_37(bounds: dict[str, str], before: str, since: str) -> None:
    policy = {"default": "1", "validRange": bounds}
    shared = device(allowMultipleAllocations=True, capacity={"m": {"value": "100E", "requestPolicy": policy}})
    for version, expected in (("1.36", before), ("1.37", since)):
        found = texts(validate_device_fields(shared, "", Release.parse(version)))

        assert len(found) == bool(expected), version
        assert expected in "".join(found)


NAMED_TWICE = {
    "devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "c", "allocationMode": "All"}}] * 2}
}
BAD_MODE = {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "c", "allocationMode": "x"}}]}}
UNKNOWN = "spec.devices.constraints[0].requests"
MANY = {"devices": {"requests": [], "constraints": [{"matchAttribute": "a/b", "requests": ["A"] * 33}]}}


def claim_errors(spec: dict[str, Any], release: Release) -> list[FieldError]:
    return validate_claim_spec(v1.ResourceClaimSpec.model_validate(spec), release)


@pytest.mark.parametrize(
    ("errors_of", "versions", "before", "since"),
    [
        (
            partial(claim_errors, NAMED_TWICE),
            ("1.34", "1.35"),
            ["spec.devices.requests[1].name"],
            ["spec.devices.requests[1]"],
        ),
        (
            partial(claim_errors, BAD_MODE),
            ("1.36", "1.37"),
            ["spec.devices.requests[0].exactly.allocationMode"],
            ["spec.devices.requests[0].allocationMode"],
        ),
        (partial(claim_errors, MANY), ("1.34", "1.35"), [UNKNOWN, *(f"{UNKNOWN}[{i}]" for i in range(33))], [UNKNOWN]),
        (
            partial(validate_slice, slice_({"attributes": {"a-b": {"int": 1}}})),
            ("1.35", "1.36"),
            ["spec.devices[0].attributes[a-b]"],
            ["spec.devices[0].attributes"],
        ),
        (
            partial(validate_slice, slice_({"capacity": {"a-b": {"value": "1"}}})),
            ("1.35", "1.36"),
            ["spec.devices[0].capacity[a-b]"],
            ["spec.devices[0].capacity"],
        ),
    ],
)
def test_paths_of_errors(
    errors_of: Callable[[Release], list[FieldError]], versions: tuple[str, str], before: list[str], since: list[str]
) -> None:
    for version, expected in zip(versions, (before, since), strict=True):
        release = Release.parse(version)
        found = errors_in_version(errors_of(release), V1BETA1, release)

        assert list(dict.fromkeys(error.path for error in found)) == expected, version


@pytest.mark.parametrize(
    ("version", "texts"),
    [
        ("1.36", {'metadata.ownerReferences.kind: Invalid value: "": must not be empty'}),
        ("1.37", {"metadata.ownerReferences[0].kind: Required value: must not be empty"}),
    ],
)
def test_owners_are_numbered_since_1_37(version: str, texts: set[str]) -> None:
    owner = {"apiVersion": "v1", "kind": "", "name": "n", "uid": "u"}
    metadata = {"name": "a", "ownerReferences": [owner]}

    found = validate_object_meta(metadata, namespaced=False, name_problems=lambda _: [], release=Release.parse(version))

    assert {str(error) for error in found} == texts


def test_condition_without_status_lacks_it_since_1_37() -> None:
    condition = v1.Condition.model_validate(
        {"type": "Ready", "reason": "R", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    )
    found = [validate_conditions([condition], "c", Release.parse(version)) for version in ("1.36", "1.37")]

    assert [[error.kind for error in errors] for errors in found] == [[ErrorKind.UNSUPPORTED], [ErrorKind.REQUIRED]]


@pytest.mark.parametrize(
    ("version", "paths"), [("1.34", ["spec.devices.requests[0].exactly.allocationMode", "spec"]), ("1.35", ["spec"])]
)
def test_changed_claims_were_checked_like_new_ones_before_1_35(version: str, paths: list[str]) -> None:
    new, old = v1.ResourceClaimSpec.model_validate(BAD_MODE), claim()

    assert [error.path for error in validate_claim_spec_update(new, old, Release.parse(version))] == paths


BAD_TAINTS = {"taints": [{"key": "k", "effect": "x"}] + [{"key": "-", "effect": "NoSchedule"}] * 16}
BOTH = {"name": "r", "exactly": {"deviceClassName": "c", "allocationMode": "All", "count": 1}, "firstAvailable": [{}]}


@pytest.mark.parametrize(
    ("version", "taints", "choices"),
    [
        ("1.34", {"Too many", "Unsupported value", "Invalid value"}, {"spec.devices.requests[0].exactly.count"}),
        ("1.35", {"Too many"}, set()),
        ("1.36", {"Too many"}, set()),
        ("1.37", {"Too many", "Unsupported value"}, {"spec.devices.requests[0].firstAvailable[0].deviceClassName"}),
    ],
)
def test_items_after_the_refusal_of_their_list_or_choice(version: str, taints: set[str], choices: set[str]) -> None:
    release = Release.parse(version)
    slices = validate_slice(slice_(BAD_TAINTS), release)
    claims = [error.path for error in claim_errors({"devices": {"requests": [BOTH]}}, release)]

    assert {error.body.partition(":")[0] for error in slices} == taints
    assert choices <= set(claims)
    assert bool(choices) == (set(claims) != {"spec.devices.requests[0]"})
