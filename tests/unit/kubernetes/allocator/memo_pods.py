"""Cases whose pods differ in one property, on equal nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tests.unit.kubernetes.allocator.cluster import DRIVER, Document, claim, request, way
from tests.unit.kubernetes.allocator.memo_case import (
    HELD,
    NUMA,
    SLOT,
    asking,
    case,
    derived,
    memory,
    numbered,
    selecting,
    tainted,
    tolerating,
    two,
)


def one_way_called(name: str) -> Sequence[Document]:
    asked = {"name": "r", "firstAvailable": [{"name": name} | way(2)]}
    return [claim(asked, constraints=[{"matchAttribute": NUMA, "requests": ["r/x"]}])]


def matching_within(name: str) -> Sequence[Document]:
    return [claim(request("r0", 2), request("r1"), constraints=[{"matchAttribute": NUMA, "requests": [name]}])]


OF_PODS: Final = [
    case(
        "PodShape.key: self._number",
        "pod_shape: tuple((tuple((_choice(choice) for choice in choices)) for choices in asked))",
        "_choice: choice.count",
        second={"claims": two()},
    ),
    case(
        "_choice: choice.request",
        devices=numbered(0, 1),
        first={"claims": [claim(request("a/b", 2), constraints=[{"matchAttribute": NUMA, "requests": ["a"]}])]},
        second={
            "claims": [
                claim(
                    {"name": "a", "firstAvailable": [{"name": "b"} | way(2)]},
                    constraints=[{"matchAttribute": NUMA, "requests": ["a"]}],
                )
            ]
        },
    ),
    case("_choice: choice.name", devices=numbered(0, 1), pod_claims=(one_way_called("x"), one_way_called("y"))),
    case("_choice: choice.class_selectors", second={"claims": [claim(request(deviceClassName="none"))]}),
    case("_choice: choice.selectors", second={"claims": selecting("false")}),
    case(
        "_choice: choice.all_devices",
        devices=numbered(0, 0),
        second={"claims": [claim(request("r", 1, allocationMode="All"))]},
    ),
    case("_choice: choice.admin_access", held=[HELD], first={"claims": [claim(request(adminAccess=True))]}),
    case("_choice: item.key", devices=tainted(), pod_claims=(tolerating(), tolerating(key="x"))),
    case(
        "_choice: item.operator",
        devices=tainted(value="other"),
        pod_claims=(tolerating(operator="Exists"), tolerating()),
    ),
    case("_choice: item.value", devices=tainted(), pod_claims=(tolerating(), tolerating(value="x"))),
    case("_choice: item.effect", devices=tainted(), pod_claims=(tolerating(), tolerating(effect="NoExecute"))),
    case("_choice: name", devices=memory(), pod_claims=(asking(), asking("cores"))),
    case("_choice: _exact(amount)", devices=memory(), pod_claims=(asking(), asking(amount="8Gi"))),
    case(
        "_choice: tuple(choice.derived.items())",
        devices=numbered(0, 1),
        pod_claims=(derived("3"), derived(f'device.attributes["{DRIVER}"].numa')),
    ),
    case(
        "pod_shape: item.requests",
        devices=numbered(0, 1, 1),
        pod_claims=(matching_within("r0"), matching_within("r1")),
    ),
    case(
        "pod_shape: item.match_attribute",
        devices=numbered(0, 1, slot={"int": 0}),
        pod_claims=(two(constraints=[{"matchAttribute": SLOT}]), two(constraints=[{"matchAttribute": NUMA}])),
    ),
    case(
        "pod_shape: item.distinct_attribute",
        devices=numbered(0, 1, slot={"int": 0}),
        pod_claims=(two(constraints=[{"distinctAttribute": NUMA}]), two(constraints=[{"distinctAttribute": SLOT}])),
    ),
]
