"""What a container of a real cluster has is read from what it prints."""

from __future__ import annotations

import pytest

from dra_kit.sandbox.stories.facts import ResourceFacts
from dra_kit.testing.real import (
    printed_device_nodes,
    printed_interfaces,
    printed_mounts,
    printed_resources,
    printed_variables,
)

OUTPUT = """
DOUGH=pan
crw-rw-rw-    1 root     root        1,   3 Nov 23 22:07 /dev/null
crw-rw----+   1 1000     video     195, 254 Jan  1  1970 /dev/oven
brw-rw----    1 root     disk        8,   0 Nov 23 22:07 /dev/sda
lrwxrwxrwx    1 root     root           15 Nov 23 22:07 /dev/stdin -> /proc/self/fd/0
crw-rw-rw-    1 root     root        1,   5 Nov 23 22:07 zero
1023 1019 0:21 /gpu/pipe /run/gpu/pipe rw,nosuid,nodev shared:7 master:1 - tmpfs tmpfs rw,size=1024k
1024 1019 8:1 / / ro,relatime - ext4 /dev/sda1 rw
Cpus_allowed:	f
Cpus_allowed_list:	0-3
Mems_allowed_list:	0-1
Inter-|   Receive                        |  Transmit
 face |bytes packets errs drop fifo frame compressed multicast|bytes packets errs drop fifo colls carrier compressed
    lo: 20970352 74052 0 0 0 0 0 0 20970352 74052 0 0 0 0 0 0
  eth0:    5620    31  0 0 0 0 0 0     1130    13 0 0 0 0 0 0
  net1:       0     0  0 0 0 0 0 0        0     0 0 0 0 0 0 0
"""


def test_device_files_are_those_that_it_lists_by_their_absolute_path() -> None:
    assert printed_device_nodes(OUTPUT) == {"/dev/null": "c 1:3", "/dev/oven": "c 195:254", "/dev/sda": "b 8:0"}


def test_mounts_are_those_of_its_mountinfo() -> None:
    assert printed_mounts(OUTPUT) == {"/run/gpu/pipe": "/gpu/pipe", "/": "/"}


def test_cpus_are_those_of_its_status() -> None:
    assert printed_resources(OUTPUT) == ResourceFacts("0-3", "0-1", None, None)


def test_interfaces_are_those_that_not_every_pod_has() -> None:
    assert printed_interfaces(OUTPUT) == ["net1"]
    assert printed_interfaces("\n".join(line for line in OUTPUT.splitlines() if "net1" not in line)) == []


def test_variables_are_those_that_it_prints() -> None:
    assert printed_variables(OUTPUT) == {"DOUGH": "pan"}


@pytest.mark.parametrize("look", [printed_device_nodes, printed_mounts, printed_interfaces])
def test_of_a_container_that_prints_none_nothing_is_known(look: object) -> None:
    assert callable(look)
    assert look("DOUGH=pan") is None
    assert printed_resources("DOUGH=pan") == ResourceFacts(None, None, None, None)
