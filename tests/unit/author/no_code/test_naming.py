"""Names of devices: valid and unique whatever the paths are, and kept."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dra_kit.author.no_code.driver import assign_device_names
from dra_kit.kubernetes.resource.names import label_errors

texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=200)
paths = st.dictionaries(st.builds(lambda text: f"/dev/{text}", texts), texts, max_size=30)
alike = st.dictionaries(
    st.from_regex(r"/dev/[aA_.-]{1,4}", fullmatch=True), st.sampled_from(["a", "A", "-", "x" * 64]), max_size=30
)


@given(paths | alike)
def test_names_are_valid_and_unique_for_any_paths(wanted: dict[str, str]) -> None:
    names = assign_device_names(wanted, {})
    assert names.keys() == wanted.keys()
    assert len(set(names.values())) == len(names)
    assert not [error for name in names.values() for error in label_errors(name, "name")]


@given(paths | alike, paths | alike)
def test_an_assigned_name_does_not_change(before: dict[str, str], now: dict[str, str]) -> None:
    known = assign_device_names(before, {})
    names = assign_device_names({**now, **before}, known)
    assert known.items() <= names.items()
    assert len(set(names.values())) == len(names)


def test_a_name_is_derived_from_the_path_if_possible() -> None:
    wanted = {"/dev/ttyUSB0": "ttyUSB0", "/dev/bus/usb/001/004": "bus/usb/001/004", "/dev/___": "___"}
    tty, usb, nameless = assign_device_names(wanted, {}).values()
    assert (tty, usb) == ("ttyusb0", "bus-usb-001-004")
    assert nameless.startswith("device-")
