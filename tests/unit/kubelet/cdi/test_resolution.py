from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_kit.errors import UnresolvableDevices
from dra_kit.kubelet.cdi.resolution import load_specs
from dra_kit.kubelet.cdi.spec import CDIDevice, IntelRdt, Spec, SpecEdits, build_spec
from tests.unit.kubelet.cdi import strategies
from tests.unit.kubelet.cdi.recorded import recorded


def env(*entries: str) -> SpecEdits:
    return SpecEdits(env=entries)


def put(directory: Path, name: str, spec: Spec) -> Path:
    directory.mkdir(exist_ok=True)
    path = directory / name
    path.write_text(spec.to_json())
    return path


def spec_of(*names: str, note: str = "", common: SpecEdits = SpecEdits()) -> Spec:  # noqa: B008
    devices = tuple(CDIDevice(name=name, container_edits=env(f"{name}={note}")) for name in names)
    return build_spec("v/c", devices, container_edits=common)


def test_edits_of_a_spec_come_once_before_its_first_device(tmp_path: Path) -> None:
    put(tmp_path, "one.json", spec_of("a", "b", common=env("ONE=1")))
    put(tmp_path, "two.json", spec_of("x", common=env("TWO=1")))
    edits = load_specs([tmp_path]).resolve(["v/c=b", "v/c=x", "v/c=a"])
    assert edits.env == ("ONE=1", "b=", "TWO=1", "x=", "a=")


def test_a_repeated_name_counts_once(tmp_path: Path) -> None:
    put(tmp_path, "one.json", spec_of("a"))
    assert load_specs([tmp_path]).resolve(["v/c=a", "v/c=a"]).env == ("a=",)


def test_no_names_need_no_edits(tmp_path: Path) -> None:
    put(tmp_path, "one.json", spec_of("a", common=env("ONE=1")))
    assert load_specs([tmp_path]).resolve([]) == SpecEdits()


def test_the_last_resctrl_settings_win(tmp_path: Path) -> None:
    devices = [CDIDevice(name=name, container_edits=SpecEdits(intel_rdt=IntelRdt(clos_id=name))) for name in ("a", "b")]
    put(tmp_path, "one.json", build_spec("v/c", tuple(devices)))
    assert load_specs([tmp_path]).resolve(["v/c=b", "v/c=a"]).intel_rdt == IntelRdt(clos_id="a")


def test_a_later_directory_wins(tmp_path: Path) -> None:
    put(tmp_path / "static", "one.json", spec_of("a", note="static"))
    put(tmp_path / "dynamic", "one.json", spec_of("a", note="dynamic"))
    assert load_specs([tmp_path / "static", tmp_path / "dynamic"]).resolve(["v/c=a"]).env == ("a=dynamic",)


def test_device_defined_twice_in_one_directory_is_unresolvable(tmp_path: Path) -> None:
    one = put(tmp_path, "one.json", spec_of("a", "b"))
    two = put(tmp_path, "two.json", spec_of("a"))
    cache = load_specs([tmp_path])
    assert cache.devices == ["v/c=b"]
    assert set(cache.errors) == {one, two}
    with pytest.raises(UnresolvableDevices, match="conflicting device 'v/c=a'"):
        cache.resolve(["v/c=a"])


def test_unresolvable_devices_are_all_named(tmp_path: Path) -> None:
    put(tmp_path, "one.json", spec_of("a"))
    with pytest.raises(UnresolvableDevices, match=r"^unresolvable CDI devices v/c=x, nonsense: ") as caught:
        load_specs([tmp_path]).resolve(["v/c=x", "v/c=a", "nonsense"])
    assert caught.value.names == ("v/c=x", "nonsense")


def test_rejected_file_affects_only_its_devices_and_is_named_in_the_error(tmp_path: Path) -> None:
    put(tmp_path, "good.json", spec_of("a"))
    bad = put(tmp_path, "bad.json", spec_of("b", common=env("no equals sign")))
    cache = load_specs([tmp_path])
    assert cache.devices == ["v/c=a"]
    with pytest.raises(UnresolvableDevices, match=r"bad\.json: containerEdits\.env\[0\]"):
        cache.resolve(["v/c=b"])
    assert list(cache.errors) == [bad]


def test_problems_that_only_a_container_start_reveals_are_ignored(tmp_path: Path) -> None:
    path = tmp_path / "relative.yaml"
    path.write_text(
        "cdiVersion: 0.5.0\nkind: v/c\ndevices:\n- name: a\n  containerEdits:\n"
        "    mounts:\n    - {hostPath: here, containerPath: there}\n"
    )
    assert load_specs([tmp_path]).resolve(["v/c=a"]).mounts[0].host_path == "here"


def test_only_spec_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "half.json.tmp").write_text("{")
    (tmp_path / "note.txt").write_text("hello")
    cache = load_specs([tmp_path, tmp_path / "missing"])
    assert (cache.files, cache.errors) == ((), {})


def test_unreadable_file_is_listed_in_the_errors(tmp_path: Path) -> None:
    path = tmp_path / "dangling.json"
    path.symlink_to(tmp_path / "gone")
    put(tmp_path, "good.json", spec_of("a"))
    cache = load_specs([tmp_path])
    assert cache.devices == ["v/c=a"]
    assert "No such file" in cache.errors[path][0]


def test_unreadable_directory_is_listed_in_the_errors(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("")
    assert list(load_specs([path]).errors) == [path]


@pytest.mark.parametrize("case", recorded("resolutions"), ids=lambda case: "+".join(case["names"]))
def test_devices_and_edits_are_those_of_the_go_library(case: dict[str, Any], tmp_path: Path) -> None:
    directories = [tmp_path / str(priority) for priority in range(len(case["dirs"]))]
    for directory, files in zip(directories, case["dirs"], strict=True):
        directory.mkdir()
        for name, text in files.items():
            (directory / name).write_text(text)
    cache = load_specs(directories)
    assert cache.devices == case["devices"]
    if case["error"]:
        with pytest.raises(UnresolvableDevices) as caught:
            cache.resolve(case["names"])
        assert list(caught.value.names) == case["unresolved"]
        assert caught.value.message.startswith(case["error"])
    else:
        edits = cache.resolve(case["names"])
        assert (list(edits.env), list(edits.additional_gids)) == (case["env"], case["gids"])


def test_files_load_when_the_go_library_loads_them(tmp_path: Path) -> None:
    path = tmp_path / "case.json"
    for case in recorded("verdicts"):
        path.write_text(case["text"], newline="")
        loaded = bool(load_specs([tmp_path]).files)
        assert loaded == (not case["error"]), (case["text"], case["error"])


@given(st.lists(strategies.valid_specs, max_size=3))
def test_any_subset_of_devices_gets_all_its_edits(specs: list[Spec]) -> None:
    specs = [spec.model_copy(update={"kind": f"vendor-{index}.example/c"}) for index, spec in enumerate(specs)]
    with TemporaryDirectory() as directory:
        for index, spec in enumerate(specs):
            put(Path(directory), f"{index}.json", spec)
        cache = load_specs([Path(directory)])
        edits = cache.resolve(cache.devices)
    wanted = [spec.container_edits for spec in specs] + [
        device.container_edits for spec in specs for device in spec.devices
    ]
    assert sorted(edits.env) == sorted(entry for edit in wanted for entry in edit.env)
    assert len(edits.mounts) == sum(len(edit.mounts) for edit in wanted)
