"""What a preparer returns: any sequence and mapping will do."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import assert_type

import dra_kit as dra

counts: dict[str, int] = {"a": 1}
names: tuple[str, ...] = ("a", "b")
nested: Mapping[str, Sequence[int]] = MappingProxyType({"a": (1, 2)})

prepared = dra.Prepared(
    env=MappingProxyType({"A": "b"}),
    cdi_devices=names,
    mounts=(dra.Mount(host_path="/a", container_path="/b"),),
    state=counts,
)
assert_type(prepared.env, Mapping[str, str])
assert_type(prepared.cdi_devices, Sequence[str])
dra.Prepared(state=names)
dra.Prepared(state=nested)
dra.DeviceStatus(data={"counts": counts, "names": names})
dra.Prepared(state={1, 2})  # error: arg-type reportArgumentType
dra.Prepared(env={"A": 1})  # error: dict-item reportArgumentType
dra.Prepared(environment={})  # error: call-arg reportCallIssue

edits = dra.edits_from_cdi({"kind": "v.example/c"}, device="0")
assert_type(edits, dra.ContainerEdits)
dra.Prepared(claim_edits=edits)
dra.Prepared(**dict(edits))
dra.edits_from_cdi(3, device="0")  # error: arg-type reportArgumentType
