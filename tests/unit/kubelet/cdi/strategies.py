"""Hypothesis strategies for CDI specs: well-formed ones, and ones that break rules here and there."""

from __future__ import annotations

from typing import Any, TypeVar

from hypothesis import strategies as st
from pydantic import BaseModel

from dra_kit.kubelet.cdi.spec import (
    VERSIONS,
    CDIDevice,
    DeviceNode,
    Hook,
    IntelRdt,
    Mount,
    NetDevice,
    SpecEdits,
    build_spec,
)

M = TypeVar("M", bound=BaseModel)


def model(cls: type[M], **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[M]:
    """``st.builds`` would fill in the fields' aliases too, because they are what a model's signature shows."""
    return st.fixed_dictionaries(fields).map(lambda values: cls(**values))


no_surrogates = st.characters(exclude_categories=["Cs"])
any_text = st.text(no_surrogates, max_size=12)
plain_text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)

vendors = st.from_regex(r"[a-z][a-z0-9]{0,5}(\.[a-z0-9]{1,5}){0,2}", fullmatch=True)
classes = st.from_regex(r"[a-zA-Z]([a-zA-Z0-9_.-]{0,6}[a-zA-Z0-9])?", fullmatch=True)
device_names = st.from_regex(r"[a-zA-Z0-9]([a-zA-Z0-9_.:-]{0,8}[a-zA-Z0-9])?", fullmatch=True)
paths = plain_text.map(lambda text: f"/{text}")
env = st.lists(st.builds("{}={}".format, st.from_regex(r"[A-Z_]{1,8}", fullmatch=True), plain_text), max_size=3)
notes = st.dictionaries(st.from_regex(r"([a-z]{1,3}/)?[a-z]{1,5}", fullmatch=True), any_text, max_size=2)
uint32 = st.integers(0, 2**32 - 1)
interface_names = st.from_regex(r"[a-z]{2,4}[0-9]{1,2}", fullmatch=True)

device_nodes = model(
    DeviceNode,
    path=paths,
    host_path=st.just("") | paths,
    type=st.sampled_from(["", "b", "c", "u", "p"]),
    major=st.integers(0, 2**63 - 1),
    minor=st.integers(0, 2**63 - 1),
    file_mode=st.none() | st.integers(0, 0o7777),
    permissions=st.sampled_from(["", "r", "rw", "rwm", "none"]),
    uid=st.none() | uint32,
    gid=st.none() | uint32,
)
hooks = model(
    Hook,
    hook_name=st.sampled_from(["prestart", "createRuntime", "createContainer", "startContainer", "poststop"]),
    path=paths,
    args=st.lists(plain_text, max_size=2).map(tuple),
    env=env.map(tuple),
    timeout=st.none() | st.integers(1, 2**32 - 1),
)
mounts = model(
    Mount,
    host_path=paths,
    container_path=paths,
    options=st.lists(st.sampled_from(["ro", "rbind", "nosuid"]), max_size=2).map(tuple),
    type=st.sampled_from(["", "none", "tmpfs"]),
)
intel_rdts = model(
    IntelRdt,
    clos_id=st.sampled_from(["", "/", "gold"]),
    l3_cache_schema=any_text,
    mem_bw_schema=any_text,
    schemata=st.none() | st.lists(any_text, max_size=2).map(tuple),
    enable_monitoring=st.booleans(),
)
net_devices = st.lists(
    model(NetDevice, host_interface_name=interface_names, name=interface_names),
    max_size=2,
    unique_by=(lambda device: device.host_interface_name, lambda device: device.name),
)
edits = model(
    SpecEdits,
    env=env.map(tuple),
    device_nodes=st.lists(device_nodes, max_size=2).map(tuple),
    net_devices=st.just(()) | net_devices.map(tuple),
    hooks=st.lists(hooks, max_size=1).map(tuple),
    mounts=st.lists(mounts, max_size=2).map(tuple),
    intel_rdt=st.none() | intel_rdts,
    additional_gids=st.lists(uint32, max_size=2).map(tuple),
)
devices = model(
    CDIDevice,
    name=device_names,
    annotations=notes,
    container_edits=edits.filter(lambda edit: edit != SpecEdits()),
)
valid_specs = st.builds(
    build_spec,
    st.builds("{}/{}".format, vendors, classes),
    st.lists(devices, min_size=1, max_size=3, unique_by=lambda device: device.name).map(tuple),
    container_edits=edits,
    annotations=notes,
)

# each field holds either something good or something that may break a rule
words = any_text | st.sampled_from(["", "-a", "a-", "a/b", "1a", "a.b", "é", "a=b", "=b", "a", ".", "..", "/", "a\n"])
numbers = st.integers(-(2**64), 2**64) | st.sampled_from([-1, 0, 1, 2**31, 2**32 - 1, 2**32, 2**63 - 1, 2**63])
careless_edits = model(
    SpecEdits,
    env=env.map(tuple) | st.lists(words, max_size=2).map(tuple),
    device_nodes=st.lists(
        device_nodes
        | model(
            DeviceNode,
            path=words,
            host_path=words,
            type=st.sampled_from(["", "b", "x", "bc"]),
            permissions=st.sampled_from(["", "none", "rwx", "mwr", "None"]),
            major=numbers,
            file_mode=st.none() | numbers,
            uid=st.none() | numbers,
        ),
        max_size=1,
    ).map(tuple),
    net_devices=st.lists(
        model(
            NetDevice,
            host_interface_name=st.sampled_from(["eth0", "eth1", ""]),
            name=st.sampled_from(["eth0", "net1", ""]),
        ),
        max_size=2,
    ).map(tuple),
    hooks=st.lists(
        hooks | model(Hook, hook_name=st.sampled_from(["prestart", "stop"]), path=words, timeout=st.none() | numbers),
        max_size=1,
    ).map(tuple),
    mounts=st.lists(mounts | model(Mount, host_path=words, container_path=words, type=words), max_size=1).map(tuple),
    intel_rdt=st.none() | intel_rdts | model(IntelRdt, clos_id=words),
    additional_gids=st.lists(numbers, max_size=1).map(tuple),
)
careless_devices = model(
    CDIDevice, name=device_names | words, annotations=notes, container_edits=edits | careless_edits
)
version = st.just("1.1.0")
changes = st.one_of(
    st.fixed_dictionaries({"cdi_version": st.sampled_from([*VERSIONS, "v1.1.0", "0.2.0", "1.2.0", "1.1", ""])}),
    st.fixed_dictionaries(
        {"cdi_version": version, "kind": st.builds("{}/{}".format, vendors | words, classes | words) | words}
    ),
    st.fixed_dictionaries({"cdi_version": version, "annotations": st.dictionaries(words, any_text, max_size=2)}),
    st.fixed_dictionaries(
        {"cdi_version": version, "devices": st.lists(devices | careless_devices, max_size=2).map(tuple)}
    ),
    st.fixed_dictionaries({"cdi_version": version, "container_edits": careless_edits}),
)
careless_specs = st.builds(lambda spec, change: spec.model_copy(update=change), valid_specs, changes)
