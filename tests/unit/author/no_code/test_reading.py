"""An invalid file of globs is reported on one line: file and line, key, cause and remedy."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dra_kit.author.no_code.model import AttributeSource, GlobEntry, GlobFile
from dra_kit.author.no_code.reader import read_globs
from dra_kit.errors import ConfigurationError
from tests.unit.author.no_code.machine import Machine


def refusal(machine: Machine, text: str) -> str:
    machine.globs(text)
    with pytest.raises(ConfigurationError) as caught:
        read_globs(machine.file)
    assert caught.value.code == "invalid-globs"
    message = str(caught.value)
    assert "\n" not in message
    return message.replace(str(machine.file), "F")


def entry(*lines: str) -> str:
    """A file with one entry, whose further lines begin with the fourth."""
    return "driver: serial.example.com\ndevices:\n- paths: /dev/ttyUSB*\n" + "".join(f"  {line}\n" for line in lines)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "F:1: the file is empty; write driver: NAME"),
        ("- paths: /dev/x", "F:1: not a mapping; write driver: NAME"),
        ("apiVersion: v1\nkind: Pod\n---\nkind: Pod", 'F:1: it is a manifest of kind "Pod", not a file of globs'),
        ("driver: a\ndriver: b\n", "F:2: driver: occurs twice; remove one"),
        ("driver: a\n---\ndriver: b\n", "F:3: a second document begins"),
        ("driver: a\n devices: []\n", "F:2: mapping values are not allowed"),
        ("driver: serial.example.com\n", "F:1: devices: is required"),
        ("driver: serial.example.com\ndevices: []\n", "F:2: devices: must have at least 1 item"),
        ("driver: Serial\ndevices: [{paths: /dev/a}]\n", "F:1: driver: must be in lower case"),
        ("driver: a_b\ndevices: [{paths: /dev/a}]\n", 'F:1: driver: Invalid value: "a_b": a lowercase RFC 1123'),
        ("driver: a\ndevices: [{path: /dev/a}]\n", 'F:2: devices[0].path: unknown field; did you mean "paths"?'),
        ("driver: a\ndevices: [{paths: []}]\n", "F:2: devices[0].paths: must have at least 1 item"),
        ("driver: a\ndevices: [{paths: ttyUSB*}]\n", "F:2: devices[0].paths: 'ttyUSB*' is not a path of device"),
        ("driver: a\ndevices:\n- paths:\n  - /dev/a\n  - /dev/../b\n", "F:5: devices[0].paths[1]: '/dev/../b' has .."),
        ("driver: a\ndevices: [{paths: /dev/**/x}]\n", "has ** in it, which is not taken; write one * for each folder"),
        ("driver: a\ndevices: [{paths: '/dev/{a,b}'}]\n", "write a list of paths instead"),
        (entry("permissions: x"), "F:4: devices[0].permissions: \"x\" is not supported; use one of"),
        (entry("pattern: '('"), "F:4: devices[0].pattern: '(' is not a Python regular expression: missing )"),
        (entry("pattern: '(?P<path>.)'"), "F:4: devices[0].pattern: its group path has the name of a built-in"),
        (entry("name: '{nam}'"), 'F:4: devices[0].name: {nam} is not a placeholder; did you mean "name"?'),
        (entry("name: '{device}'"), "F:4: devices[0].name: {device} is not a placeholder"),
        (entry("attributes:", "  kind: [a]"), "F:5: devices[0].attributes.kind: is not a string, integer, true"),
        (entry("attributes:", "  kind: 1.5"), "F:5: devices[0].attributes.kind: 1.5 is not an integer; quote"),
        (entry("attributes:", "  a b: 1"), 'F:5: devices[0].attributes["a b"]: attributes: Invalid value: "a b"'),
        (entry("attributes:", f"  a: {'x' * 65}"), "F:5: devices[0].attributes.a: 'xxxx"),
        (
            entry("attributes:", "  v: {value: '1', as: version}"),
            "F:5: devices[0].attributes.v: '1' is not a valid version",
        ),
        (entry("attributes:", "  v: {read: /etc/shadow}"), "'/etc/shadow' is not below /sys/"),
        (entry("attributes:", "  v: {read: /sys/a, udev: B}"), "F:5: devices[0].attributes.v: has read and udev of"),
        (entry("attributes:", "  v: {as: int}"), "F:5: devices[0].attributes.v: has none of value, read and udev"),
        (entry("attributes:", "  v: {raed: /sys/a}"), 'devices[0].attributes.v.raed: unknown field; did you mean'),
        (entry("attributes:", "  v: {read: /sys/a, as: int, default: no}"), "the default False is not a valid int"),
        (entry("capacity:", "  mem: 16GB"), "F:5: devices[0].capacity.mem: value: '16GB' is not a quantity"),
        (
            entry("allowMultipleAllocations: true", "capacity: {users: 10}"),
            "F:5: devices[0].capacity.users: the first claim would take all of it",
        ),
        (entry("containerPath: tty"), "F:4: devices[0].containerPath: 'tty' is not an absolute path; begin it with /"),
        (entry("mounts: [{hostPath: /a}]"), "F:4: devices[0].mounts[0].containerPath: is required"),
        (entry("attributes:", "  v: {read: /sys/{name}}"), "put a text with a placeholder in quotes where braces are"),
        (entry("env: {A=B: c}"), 'F:4: devices[0].env["A=B"]: env: a name that begins with \'A\' is not a valid'),
        (entry("env: {A: 1}"), "F:4: devices[0].env.A: must be a string, not 1; put it in quotes"),
    ],
)  # fmt: skip
def test_a_mistake_is_reported_with_its_line(machine: Machine, text: str, message: str) -> None:
    assert message in refusal(machine, text)


def test_several_mistakes_are_all_reported(machine: Machine) -> None:
    message = refusal(machine, entry("permission: rw", "gid: -1"))
    assert (
        'F:4: devices[0].permission: unknown field; did you mean "permissions"?; F:5: devices[0].gid: must' in message
    )


def test_a_missing_file_is_an_error(machine: Machine) -> None:
    with pytest.raises(ConfigurationError, match=r"serial\.yaml cannot be read: No such file"):
        read_globs(machine.file)


def test_a_file_with_every_field_is_read(machine: Machine) -> None:
    machine.globs(
        entry(
            "pattern: 'USB(?P<number>[0-9]+)$'",
            "name: usb-{number}",
            "attributes:",
            "  number: {value: '{number}', as: int}",
            "  vendor: {read: '/sys/class/tty/{name}/device/../idVendor', default: unknown}",
            "  serial: {udev: ID_SERIAL_SHORT}",
            "  firmware: {read: '/sys/firmware/{name}', match: 'v(.*)', as: version, default: 0.0.0}",
            "  fast: true",
            "allowMultipleAllocations: true",
            "capacity:",
            "  users: {value: 10, requestPolicy: {default: 1, validRange: {min: 1, max: 4, step: 1}}}",
            "with: /dev/lock-{number}",
            "permissions: rwm",
            "containerPath: /dev/serial",
            "uid: 1",
            "gid: 20",
            "fileMode: 0660",
            "env: {'{env}_PORT': '{path}'}",
            "mounts: [{hostPath: /etc/serial, containerPath: /etc/serial, options: [ro, nosuid]}]",
        )
    )
    [device] = read_globs(machine.file).devices
    assert (device.file_mode, device.with_, device.paths) == (0o660, ["/dev/lock-{number}"], ["/dev/ttyUSB*"])


keys = st.sampled_from(
    [
        field.alias or name
        for model in (GlobFile, GlobEntry, AttributeSource)
        for name, field in model.model_fields.items()
    ]
)
scalars = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=9), st.just("/dev/{x}*"))
trees = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4))


@given(
    tree=trees
    | st.builds(
        lambda entry: {"driver": "a.b", "devices": [{"paths": "/dev/a", **entry}]}, st.dictionaries(keys, trees)
    )
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_file_is_a_driver_or_a_reported_error(machine: Machine, tree: object) -> None:
    machine.globs(yaml.safe_dump(tree, allow_unicode=True))
    message = f"{machine.file}:"
    try:
        read_globs(machine.file)
    except ConfigurationError as error:
        message = str(error)
    assert message.startswith(f"{machine.file}:")


names = st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True)
sources = st.one_of(
    st.builds(lambda value: {"value": value}, st.one_of(st.booleans(), st.integers(0, 9), names)),
    st.builds(lambda name, kind: {"read": f"/sys/{name}", "as": kind}, names, st.sampled_from(["string", "int"])),
    st.builds(lambda name: {"udev": name, "default": "none"}, names),
)
entries = st.builds(
    lambda paths, attributes, capacity, rest: {"paths": paths, "attributes": attributes, "capacity": capacity, **rest},
    st.lists(st.builds(lambda name: f"/dev/{name}*", names), min_size=1, max_size=3),
    st.dictionaries(names, sources, max_size=4),
    st.dictionaries(names, st.builds(lambda value: {"value": value}, st.integers(0, 99)), max_size=2),
    st.fixed_dictionaries({}, optional={"gid": st.integers(0, 99), "permissions": st.sampled_from(["r", "rw", "rwm"])}),
)


@given(
    st.builds(lambda devices: {"driver": "a.example", "devices": devices}, st.lists(entries, min_size=1, max_size=3))
)
def test_a_file_survives_a_round_trip(content: dict[str, object]) -> None:
    model = GlobFile.model_validate(yaml.safe_load(yaml.safe_dump(content)))
    written = yaml.safe_dump(model.model_dump(by_alias=True, exclude_defaults=True))
    assert GlobFile.model_validate(yaml.safe_load(written)) == model
