"""What a container of a real cluster has is read from what it prints."""

from __future__ import annotations

import pytest

from dra_kit.testing.real import printed_device_nodes, printed_mounts, printed_variables

OUTPUT = """
DOUGH=pan
crw-rw-rw-    1 root     root        1,   3 Nov 23 22:07 /dev/null
crw-rw----+   1 1000     video     195, 254 Jan  1  1970 /dev/oven
brw-rw----    1 root     disk        8,   0 Nov 23 22:07 /dev/sda
lrwxrwxrwx    1 root     root           15 Nov 23 22:07 /dev/stdin -> /proc/self/fd/0
crw-rw-rw-    1 root     root        1,   5 Nov 23 22:07 zero
1023 1019 0:21 /gpu/pipe /run/gpu/pipe rw,nosuid,nodev shared:7 master:1 - tmpfs tmpfs rw,size=1024k
1024 1019 8:1 / / ro,relatime - ext4 /dev/sda1 rw
"""


def test_device_files_are_those_that_it_lists_by_their_absolute_path() -> None:
    assert printed_device_nodes(OUTPUT) == {"/dev/null": "c 1:3", "/dev/oven": "c 195:254", "/dev/sda": "b 8:0"}


def test_mounts_are_those_of_its_mountinfo() -> None:
    assert printed_mounts(OUTPUT) == {"/run/gpu/pipe": "/gpu/pipe", "/": "/"}


def test_variables_are_those_that_it_prints() -> None:
    assert printed_variables(OUTPUT) == {"DOUGH": "pan"}


@pytest.mark.parametrize("look", [printed_device_nodes, printed_mounts])
def test_of_a_container_that_prints_none_nothing_is_known(look: object) -> None:
    assert callable(look)
    assert look("DOUGH=pan") is None
