"""The table of feature gates agrees with the sources of each release."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dra_kit.kubernetes.release import NEWEST, OLDEST, Release
from tests.release.__main__ import main
from tests.release.gates import RECORDED, GateFacts, differences, facts_of, gates_of, recorded, write

SOURCE = """
const (
	DRAOven featuregate.Feature = "DRAOven"
)
var defaultVersionedKubernetesFeatureGates = map[featuregate.Feature]featuregate.VersionedSpecs{
	DRAOven: {
		{Version: version.MustParse("1.35"), Default: false, PreRelease: featuregate.Alpha},
		{Version: version.MustParse("1.37"), Default: true, PreRelease: featuregate.GA, LockToDefault: true},
	},
	DRAPan: {
		{Version: version.MustParse("1.37"), Default: false, PreRelease: featuregate.Beta},
		{Version: version.MustParse("1.37"), Default: true, PreRelease: featuregate.Beta, MinCompatibilityVersion: version.MustParse("1.37")},
	},
	genericfeatures.ShardedListAndWatch: {
		{Version: version.MustParse("1.36"), Default: false, PreRelease: featuregate.Alpha},
	},
	UnrelatedGate: {
		{Version: version.MustParse("1.35"), Default: true, PreRelease: featuregate.Beta},
	},
}
	DRAPan: {genericfeatures.DRAOven}, // a comment
	genericfeatures.ShardedListAndWatch: {},
"""  # noqa: E501


def test_no_recorded_gate_differs() -> None:
    assert list(differences(recorded())) == []


def test_every_release_is_recorded() -> None:
    releases = {fact.release for fact in recorded()}
    assert {f"1.{minor}" for minor in range(OLDEST.minor, NEWEST.minor + 1)} <= releases


def test_gates_are_read_as_the_server_of_the_release_has_them() -> None:
    assert list(gates_of(SOURCE, "1.37")) == [
        GateFacts("1.37", "DRAOven", True, True, "1.35", ()),
        GateFacts("1.37", "DRAPan", False, False, "1.37", ("DRAOven",)),
        GateFacts("1.37", "ShardedListAndWatch", False, False, "1.36", ()),
    ]
    assert [fact.gate for fact in gates_of(SOURCE, "1.35")] == ["DRAOven"]
    assert next(gates_of(SOURCE, "1.38")).default


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"gate": "DRAOven"}, "DRAOven of 1.36 is missing: add it to GATES, or to INERT_GATES with the reason"),
        ({"default": False}, "DRADeviceTaints of 1.36, on by default: False in Kubernetes, True in GATES"),
        ({"locked": True}, "DRADeviceTaints of 1.36, locked: True in Kubernetes, False in GATES"),
        ({"since": "1.32"}, "DRADeviceTaints of 1.36, known since: 32 in Kubernetes, 33 in GATES"),
        ({"needs": ("DRAOven",)}, "DRADeviceTaints of 1.36, needs: {'DRAOven'} in Kubernetes, set() in GATES"),
    ],
)
def test_a_difference_is_one_line(change: dict[str, Any], line: str) -> None:
    [fact] = [fact for fact in recorded() if (fact.release, fact.gate) == ("1.36", "DRADeviceTaints")]

    assert line in differences([fact._replace(**change)])


def test_a_gate_that_kubernetes_has_removed_is_named() -> None:
    facts = [fact for fact in recorded() if fact.release == "1.36" and fact.gate != "DRADeviceTaints"]

    assert list(differences(facts)) == ["DRADeviceTaints of 1.36 is in GATES, but not in Kubernetes: set 'removed'"]


def test_the_path_of_a_file_names_its_release(tmp_path: Path) -> None:
    file = tmp_path / "kubernetes@v1.37.1" / "kube_features.go"
    file.parent.mkdir()
    file.write_text(SOURCE)

    assert {fact.release for fact in facts_of([file])} == {"1.37"}


def test_a_file_of_no_release_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "kube_features.go"
    file.write_text(SOURCE)

    with pytest.raises(ValueError, match=r"its path does not name the release; put it in a folder such as v1\.38\.0"):
        facts_of([file])


def test_a_gate_is_refused_without_the_one_it_needs() -> None:
    with pytest.raises(ValueError, match="DRAResourceClaimGranularStatusAuthorization is on but needs"):
        Release.parse("1.36").switched("DRADeviceBindingConditions=false,DRAResourceClaimDeviceStatus=false")


@pytest.mark.parametrize("table", ["gates", "schema"])
def test_a_comparison_with_nothing_is_refused(table: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([table])

    assert ended.value.code == 2
    assert "the following arguments are required" in capsys.readouterr().err


def test_recording_a_release_keeps_the_others(tmp_path: Path) -> None:
    file, oven = tmp_path / "gates.jsonl", GateFacts("1.36", "DRAOven", True, True, "1.35", ())
    file.write_bytes(RECORDED.read_bytes())
    before = recorded()

    write([oven], file)
    again = recorded(file)

    assert [fact for fact in again if fact.release == "1.36"] == [oven]
    assert [fact for fact in again if fact.release != "1.36"] == [fact for fact in before if fact.release != "1.36"]
