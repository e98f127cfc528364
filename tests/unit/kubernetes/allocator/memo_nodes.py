"""Cases whose nodes differ in one property of their devices, of the usage or of the node itself."""

from __future__ import annotations

from typing import Final

from dra_kit.kubernetes.allocator.rules import OPTIONAL_NODE_OPERATIONS, AllocatorRules
from dra_kit.kubernetes.release import Release
from tests.unit.kubernetes.allocator.cluster import DRIVER, claim, counters, device, request
from tests.unit.kubernetes.allocator.memo_case import (
    ANY_SLOT,
    EVERYTHING,
    HELD,
    NUMA,
    SLOT,
    TAKEN,
    THE_SLOT,
    TWO_SHARES,
    asking,
    case,
    derived,
    drawer,
    elsewhere,
    having,
    memory,
    numbered,
    selecting,
    share,
    slotted,
    tainted,
    tolerating,
    two,
    zone,
)

OF_NODES: Final = [
    # nodes
    case(
        "PodShape.key: OPTIONAL_NODE_OPERATIONS in node.declared_features",
        spec={"skipNodeOperations": ["Prepare"]},
        first={"features": [OPTIONAL_NODE_OPERATIONS]},
    ),
    case(
        "PodShape.key: pools.reach",
        devices=[],
        shared=[{"perDeviceNodeSelection": True, "devices": [device("s0", **zone("a")), device("s1", allNodes=True)]}],
        first={"labels": {"zone": "a"}},
    ),
    case(
        "reach of an invalid selector",
        devices=[],
        shared=[
            {
                "perDeviceNodeSelection": True,
                "devices": [
                    device("s0", allNodes=True, taints=[{"key": "bad", "effect": "NoSchedule"}]),
                    device("s1", **zone("a")),
                    device("s2", **zone("*")),
                ],
            }
        ],
        first={"labels": {"zone": "a"}},
    ),
    # usage
    case(
        "PodShape.key: self._usages.number(pool)",
        "_PoolUsages.number: held",
        "_PoolUsages.number: *pool.usable",
        "held exclusively",
        second={"held": [HELD]},
    ),
    case(
        "_PoolUsages.number: *pool.drawing_elsewhere",
        devices=[drawer("d0")],
        slices=[counters(1), elsewhere()],
        second={"held": [{"device": "e0"}]},
    ),
    case(
        "DeviceUsage.held: exclusive",
        devices=memory(),
        claims=asking(),
        first={"held": [HELD | share("1Gi")]},
        second={"held": [HELD, HELD | share("1Gi")]},
    ),
    case(
        "DeviceUsage.held: tuple(sorted(self.consumed(device, gates).items()))",
        "held in shares",
        devices=memory("2Gi"),
        claims=asking(),
        first={"held": [HELD | share("1Gi")]},
        second={"held": [HELD | share("2Gi")]},
    ),
    case("changes of usage", "device allocated", between=lambda world: world.allocate(TAKEN)),
    case("device released", held=[HELD], between=lambda world: world.deallocate(TAKEN)),
    # pools
    case("traits_of: pool.incomplete", devices=[], claims=EVERYTHING, second={"announced": 2}),
    case("traits_of: bool(pool.invalid)", claims=EVERYTHING, node_devices=([], [device("d0"), device("d0")])),
    case(
        "traits_of: _counters(pool, gates)",
        "_PoolUsages.number: known.traits",
        devices=[drawer("d0"), drawer("d1")],
        claims=two(),
        first={"slices": [counters(2)]},
        second={"slices": [counters(1)]},
    ),
    case(
        "traits_of: tuple([device.demands for device in pool.drawing_elsewhere])",
        devices=[drawer("d0")],
        held=[{"device": "e0"}],
        first={"slices": [counters(2), elsewhere(1)]},
        second={"slices": [counters(2), elsewhere(2)]},
    ),
    case("each pool", shared=[{"devices": []}], second={"devices": tainted()}),
    # devices
    case(
        "traits_of: tuple([_traits(device, gates) for device in pool.usable])",
        "_traits: device.shareable",
        claims=TWO_SHARES,
        node_devices=(having(), having(shareable=False)),
    ),
    case(
        "_traits: name",
        claims=asking(),
        node_devices=(having(memory={"value": "1Gi"}), having(cores={"value": "1Gi"})),
    ),
    case("_traits: _exact(item.value)", claims=asking(amount="2Gi"), node_devices=(memory("2Gi"), memory("1Gi"))),
    case(
        "_traits: _policy(item.request_policy)",
        "_policy: _exact(policy.default)",
        claims=TWO_SHARES,
        node_devices=(memory(default="1Gi"), memory(default="4Gi")),
    ),
    case(
        "_policy: tuple((_exact(value) for value in policy.valid_values))",
        claims=asking(),
        node_devices=(memory(default="1Gi", validValues=["1Gi"]), memory(default="1Gi", validValues=["2Gi"])),
    ),
    case(
        "_policy: _exact(valid.min)",
        claims=asking(),
        node_devices=(
            memory(default="2Gi", validRange={"min": "1Gi"}),
            memory(default="2Gi", validRange={"min": "2Gi"}),
        ),
    ),
    case(
        "_policy: _exact(valid.max)",
        claims=asking(),
        node_devices=(
            memory(default="512Mi", validRange={"min": "512Mi", "max": "1Gi"}),
            memory(default="512Mi", validRange={"min": "512Mi", "max": "512Mi"}),
        ),
    ),
    case(
        "_policy: _exact(valid.step)",
        claims=asking(),
        node_devices=(
            memory(default="512Mi", validRange={"min": "512Mi", "step": "512Mi"}),
            memory(default="512Mi", validRange={"min": "512Mi", "step": "1Gi"}),
        ),
    ),
    # the result repeats the notation; 10**21 is written as 1; the default is compared in its notation
    case("_exact: str(quantity)", first={"devices": memory("1e3")}, second={"devices": memory("1E3")}),
    case(
        "_exact: quantity.as_decimal.as_tuple()",
        claims=asking(amount="2"),
        node_devices=(memory(f"1{21 * '0'}"), memory("1")),
    ),
    case(
        "_exact: quantity.format",
        claims=asking(amount="512.000000000"),
        node_devices=(memory(default="512.000000000", validValues=["1"]), memory(default="0.5Ki", validValues=["1"])),
    ),
    case(
        "_traits: device.demands",
        slices=[counters(2)],
        claims=two(),
        node_devices=([drawer("d0"), drawer("d1")], [drawer("d0"), drawer("d1", 2)]),
    ),
    case("_traits: _taints(device.taints)", second={"devices": tainted()}),
    *(
        case(f"_taints: taint.{field}", claims=tolerating(), first={"devices": tainted()}, second={"devices": other})
        for field, other in {
            "key": tainted(key="other"),
            "value": tainted(value="other"),
            "effect": tainted(effect="NoExecute"),
        }.items()
    ),
    case(
        "_traits: _taints(device.rule_taints)",
        rules=[
            {
                "metadata": {"name": "rule"},
                "spec": {"deviceSelector": {"pool": "n2-pool"}, "taint": {"key": "bad", "effect": "NoSchedule"}},
            }
        ],
    ),
    case(
        "_traits: bool(device.device.binding_conditions)",
        gates=AllocatorRules.of(Release.parse("1.34")),
        second={"devices": [device("d0", bindingConditions=["ready"], bindingFailureConditions=["failed"])]},
    ),
    case("_traits: bool(device.spec.skip_node_operations)", second={"spec": {"skipNodeOperations": ["Prepare"]}}),
    # one of two devices with their own node selection is not for the node: it is the first or the second of the pool
    case(
        "_traits: bool(device.spec.per_device_node_selection)",
        labels={"zone": "@"},
        first={
            "devices": [device("d0", **zone("a")), device("d1", **zone("@"))],
            "spec": {"perDeviceNodeSelection": True},
            "slices": [{"devices": [device("d2")], **zone("@")}],
        },
        second={
            "spec": zone("@"),
            "slices": [
                {"perDeviceNodeSelection": True, "devices": [device("d1", **zone("a")), device("d2", **zone("@"))]}
            ],
        },
    ),
    case(
        "_traits: is_pinned(device, gates)",
        labels={"zone": "@"},
        spec=zone("@", "b"),
        first={"devices": [device("d0", bindsToNode=True)]},
    ),
    case(
        "_traits: has_many_terms(device)",
        labels={"zone": "@"},
        first={"spec": zone("@")},
        second={"spec": zone("@", "b")},
    ),
    # plain devices, which are compared by their shapes
    case(
        "shapes of plain devices",
        lazy=True,
        claims=selecting('device.capacity[device.driver].memory.isGreaterThan(quantity("1Gi"))'),
        node_devices=(
            [device("d0", capacity={"memory": {"value": "2Gi"}})],
            [device("d0", capacity={"memory": {"value": "1Gi"}})],
        ),
    ),
    # reads of expressions and constraints
    case(
        "PodShape.key: reads_number",
        "AttributeReads._of_device: likeness",
        "_reads: *(evaluator.selector_reads(text) for text in selectors)",
        "_reads: *choice.selectors",
        claims=selecting(f"{THE_SLOT} == 0"),
        node_devices=(slotted(slot={"int": 0}), slotted(slot={"int": 1})),
    ),
    case(
        "_reads: *choice.class_selectors",
        claims=[claim(request("r", 1, deviceClassName="slotted"))],
        node_devices=(slotted(slot={"int": 0}), slotted(slot={"int": 1})),
    ),
    case(
        "_reads: *(evaluator.derived_reads(text) for text in choice.derived.values())",
        claims=derived(THE_SLOT),
        node_devices=(
            numbered(0, 0, slot={"int": 0}),
            [*numbered(0, slot={"int": 0}), *numbered(0, 0, slot={"int": 1})[1:]],
        ),
    ),
    # everything else that expressions read is in the traits of a device
    case(
        "_traits: _exact(item.value)",
        claims=selecting(f'device.capacity["{DRIVER}"].memory.isGreaterThan(quantity("1Gi"))'),
        node_devices=(memory("2Gi"), memory("1Gi")),
    ),
    case(
        "_traits: name",
        claims=selecting(f'"memory" in device.capacity["{DRIVER}"]'),
        node_devices=(having(memory={"value": "1Gi"}), having(cores={"value": "1Gi"})),
    ),
    case(
        "_traits: device.shareable",
        claims=selecting("device.allowMultipleAllocations"),
        node_devices=(having(), having(shareable=False)),
    ),
    case(
        "unknown reads",
        "AttributeReads._of_device: _value(attribute)",
        claims=selecting(f"{ANY_SLOT}.orValue(0) == 0"),
        node_devices=(slotted(slot={"int": 0}), slotted(slot={"int": 1})),
    ),
    case(
        "AttributeReads._of_device: name",
        claims=selecting(f"{ANY_SLOT}.hasValue()"),
        node_devices=(slotted(slot={"int": 0}), slotted(other={"int": 0})),
    ),
    case(
        "AttributeReads._of_device: device.id.driver",
        claims=selecting(f"{ANY_SLOT}.hasValue()"),
        devices=slotted(**{SLOT: {"int": 0}}),
        second={"spec": {"driver": "other.example.com"}},
    ),
    case(
        "driver read by an expression",
        claims=selecting(f'device.driver == "{DRIVER}"'),
        second={"spec": {"driver": "other.example.com"}},
    ),
    case(
        "_value: frozenset(attribute.model_fields_set)",
        claims=selecting(f"{ANY_SLOT}.hasValue()"),
        node_devices=(slotted(slot={"int": 0}), slotted(slot={"int": 0, "unknown": 1})),
    ),
    case(
        "attribute that fails every expression",
        claims=selecting(f"{THE_SLOT} == 0"),
        node_devices=(slotted(slot={"int": 0}), slotted(slot={"int": 0}, release={"version": "x"})),
    ),
    case(
        "AttributeReads._of_device: tuple([_value(published_attribute(device, name)) for name in self._attributes])",
        "_value: *vars(attribute).values()",
        "matchAttribute",
        claims=two(constraints=[{"matchAttribute": NUMA}]),
        node_devices=(numbered(0, 0), numbered(0, 1)),
    ),
    case(
        "distinctAttribute",
        claims=two(constraints=[{"distinctAttribute": NUMA}]),
        node_devices=(numbered(0, 1), numbered(0, 0)),
    ),
]
