"""The gallery: short drivers, each with a README that is true and a story that passes."""

from __future__ import annotations

import importlib.util
import inspect
import re
import shlex
import shutil
import sys
from collections.abc import Callable
from contextlib import chdir
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

import dra_kit
from dra_kit.cli.app import cli
from dra_kit.testing import unit
from tests.unit.docs.test_links import without_code

ROOT = Path(__file__).resolve().parents[3]
GALLERY = ROOT / "examples" / "gallery"
FOLDERS = {file.parent.name: file.parent for file in sorted(GALLERY.glob("*/driver.py"))}
LINES_MAX = 200

pytestmark = pytest.mark.skipif(
    not (GALLERY / "tpu" / "sysfs").exists(), reason="a source distribution has no sysfs trees: use a checkout"
)
entries = pytest.mark.parametrize("folder", FOLDERS.values(), ids=FOLDERS)


def lines(folder: Path) -> int:
    return len((folder / "driver.py").read_text(encoding="utf-8").splitlines())


def readme(folder: Path) -> str:
    return (folder / "README.md").read_text(encoding="utf-8")


def table(text: str, first_column: str) -> list[list[str]]:
    """Return the cells of the table that begins with a column, without its head."""
    _, found, rest = text.partition(f"| {first_column} |")
    assert found, f"no table begins with the column {first_column!r}"
    rows = rest.split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in row.strip("| ").split(" | ")] for row in rows]


def command(folder: Path) -> list[str]:
    """Return the arguments of the command that runs the story."""
    (found,) = re.findall(r"^\$ dra-kit sandbox (.*)$", readme(folder), re.MULTILINE)
    return shlex.split(found)


@entries
def test_driver_can_be_read_in_minutes(folder: Path) -> None:
    assert lines(folder) <= LINES_MAX


@entries
def test_readme_shows_a_claim_and_names_sources(folder: Path) -> None:
    text = readme(folder)

    assert "kind: ResourceClaim" in text
    assert re.search(r"https://\S*(kernel\.org|torvalds/linux|intel|amd|google|dmtf|nvm|pcisig|docs|readthedocs)", text)
    assert "production driver would still need" in text


@entries
def test_links_of_readme_lead_to_files(folder: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)", without_code(readme(folder)))
    assert [link for link in links if "://" not in link and not (folder / link).exists()] == []


def seams(folder: Path) -> list[str]:
    """Return what is code in the first column of the table, except placeholders in settings (``{node}``)."""
    return [seam for first, *_ in table(readme(folder), "seam") for seam in re.findall(r"`([^`{]+)`", first)]


OWNERS = {"context": "Context", "cluster": "ClusterApi", "claim": "Claim", "device": "AllocatedDevice"}


def arguments(function: Callable[..., object]) -> set[str]:
    try:
        return {*inspect.signature(function).parameters}
    except ValueError:  # of a class of C
        return set()


def names_of(owner: object) -> set[str]:
    """Return attributes, annotated attributes and arguments of a public object."""
    found = set(dir(owner))
    for cls in getattr(owner, "__mro__", ()):
        found |= {*inspect.get_annotations(cls)}
    if isinstance(owner, type):
        found |= arguments(owner.__init_subclass__)
    return found | arguments(owner) if callable(owner) else found


def exists(seam: str) -> bool:
    """Return whether a text such as ``Driver(rescan_every=…)`` or ``context.prepared()`` is of the public face."""
    head, _, given = seam.removeprefix("dra.").partition("(")
    first, *more = head.split(".")
    owner = getattr(dra_kit, OWNERS.get(first, first), None)
    if owner is None:  # an attribute or parameter alone
        return not more and any(head in names_of(getattr(dra_kit, name)) for name in dra_kit.__all__)
    named = [*more[:1], *re.findall(r"(\w+)=", given)]  # what a context's api has is not of the context's class
    return set(named) <= names_of(owner)


def test_seam_must_exist() -> None:
    for seam in ("Effect", "dra.Effect.revert", "Driver(rescan_every=…)", "context.prepared()", "consumes_counters"):
        assert exists(seam), seam
    for seam in ("Efect", "Effect.undo", "Driver(rescan=…)", "context.claims()"):
        assert not exists(seam), seam


@entries
def test_seams_of_readme_exist(folder: Path) -> None:
    assert len(seams(folder)) >= 3
    assert [seam for seam in seams(folder) if not exists(seam)] == []


@entries
def test_manifests_have_no_findings(folder: Path) -> None:
    result = CliRunner().invoke(cli, ["lint", "--strict", "--driver", str(folder), str(folder)])
    assert result.exit_code == 0, result.output


def test_index_lists_each_driver_with_its_lines() -> None:
    rows = {cells[0]: cells for cells in table((GALLERY / "README.md").read_text(encoding="utf-8"), "driver")}

    for name, folder in FOLDERS.items():
        driver, _, _, our_lines, named = rows[f"[{name}]({name}/README.md)"]
        assert int(our_lines) == lines(folder), driver
        assert {*re.findall(r"`([^`]+)`", named)} <= {*seams(folder)}, driver


def contents(folder: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in folder.rglob("*") if file.is_file() and "__pycache__" not in file.parts}


@pytest.mark.processes
@pytest.mark.timeout(600)
@entries
def test_command_of_readme_runs_the_story(folder: Path) -> None:
    words, place, before = command(folder), folder.relative_to(ROOT), contents(folder)
    assert words[0] == str(place)
    assert words[-2:] == ["--story", f"{place}/story"]

    with chdir(ROOT):
        result = CliRunner().invoke(cli, ["sandbox", *words], catch_exceptions=False)

    assert result.exit_code == 0, result.output[-8000:]
    assert contents(folder) == before


def module(name: str) -> ModuleType:
    """Import the driver of a folder."""
    qualified = f"gallery_{name.replace('-', '_')}"
    if qualified not in sys.modules:
        spec = importlib.util.spec_from_file_location(qualified, FOLDERS[name] / "driver.py")
        assert spec is not None
        assert spec.loader is not None
        sys.modules[qualified] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[qualified])
    return sys.modules[qualified]


def tree(name: str, directory: Path) -> Path:
    """Return a copy of a driver's tree of files."""
    return Path(shutil.copytree(FOLDERS[name] / "sysfs", directory / "sysfs", symlinks=True))


def devices(provider: Any, settings: Any, **context: Any) -> dict[str, Any]:
    """Return what a provider publishes, by name."""
    node = SimpleNamespace(name="node-1")
    provider.context = SimpleNamespace(settings=settings, node=node, prepared=dict, **context)
    (found,) = provider.discover()
    pools = found.pools if isinstance(found, dra_kit.Inventory) else [SimpleNamespace(devices=found)]
    return {device.name: device for pool in pools for device in pool.devices}


def test_small_disks_are_published_first(tmp_path: Path) -> None:
    nvme = module("nvme")
    found = devices(nvme.Disks(), nvme.Settings(sysfs=tree("nvme", tmp_path), dev=tmp_path))

    assert [disk.size // 10**9 for disk in found.values()] == [960, 960, 3840]


@pytest.mark.parametrize("erased", [False, True])
def test_disk_is_erased_by_its_id_not_by_its_name(tmp_path: Path, erased: bool) -> None:
    """After a reboot, the kernel may give the name to another disk, even to the one that the node boots from."""
    nvme, sysfs = module("nvme"), tree("nvme", tmp_path)
    settings = nvme.Settings(sysfs=sysfs, dev=tmp_path, erase="touch {path}")
    disk = devices(nvme.Disks(), settings)["eui-002538b700000011"]
    with unit(nvme.driver, settings=settings) as bench:
        bench.prepare("data", [disk])
        (controller,) = sysfs.glob("devices/pci*/*/*/nvme/nvme1")
        (controller / "nvme1n1").rename(controller / "nvme7n1")
        (other,) = sysfs.glob("devices/pci*/*/*/nvme/nvme0/nvme0n1")
        other.rename(other.with_name("nvme1n1"))
        if not erased:
            shutil.rmtree(controller)
        bench.unprepare("data")

    assert [name for name in ("nvme1n1", "nvme7n1") if (tmp_path / name).exists()] == (["nvme7n1"] if erased else [])


def test_disk_with_a_long_id_is_offered_with_the_others(tmp_path: Path) -> None:
    """The kernel makes the id from vendor, serial number and model where the disk has none."""
    nvme, sysfs = module("nvme"), tree("nvme", tmp_path)
    (file,) = sysfs.glob("devices/pci*/*/*/nvme/nvme1/nvme1n1/wwid")
    file.write_text(f"nvme.144d-{'53' * 20}-{'4d' * 40}-00000001\n")

    found = devices(nvme.Disks(), nvme.Settings(sysfs=sysfs))

    assert len(found) == 3
    assert [disk.block for name, disk in found.items() if not name.startswith("eui-")] == ["nvme1n1"]


def test_device_attached_to_a_node_without_its_claim_is_detached(tmp_path: Path) -> None:
    """The controller stopped between release and detach, and the device has a claim on another node since then."""
    fabric, sysfs = module("fabric"), tree("fabric", tmp_path)
    settings = fabric.Settings(redfish=sysfs / "redfish/v1", sysfs=sysfs)
    manager = fabric.Manager(settings)
    manager.attach("node-1", "gpu-1")
    manager.attach("node-2", "gpu-1")
    binder = fabric.Attacher()
    binder.context = SimpleNamespace(settings=settings)

    binder.resume([(SimpleNamespace(node="node-2"), SimpleNamespace(name="gpu-1"))])

    assert (manager.attached("node-1"), manager.attached("node-2")) == ([], ["gpu-1"])


@pytest.mark.parametrize(
    ("chips", "offered"),
    [
        (1, ["slice-1x1-0"]),
        (4, ["slice-1x1-0", "slice-1x1-1", "slice-1x1-2", "slice-1x1-3", "slice-2x2-0"]),
        (0, []),
    ],
)
def test_host_with_few_chips_offers_the_slices_that_they_form(tmp_path: Path, chips: int, offered: list[str]) -> None:
    tpu, sysfs = module("tpu"), tree("tpu", tmp_path)
    for number in range(chips, 8):
        (sysfs / f"class/accel/accel{number}").unlink()

    assert sorted(devices(tpu.Slices(), tpu.Settings(sysfs=sysfs))) == offered


def test_chip_that_is_gone_takes_no_other_chip_with_it(tmp_path: Path) -> None:
    tpu, sysfs = module("tpu"), tree("tpu", tmp_path)
    (sysfs / "class/accel/accel2").unlink()

    found = devices(tpu.Slices(), tpu.Settings(sysfs=sysfs))

    assert {name for name in found if "1x1" in name} == {f"slice-1x1-{number}" for number in (0, 1, 3, 4, 5, 6, 7)}
    assert {name for name in found if "1x1" not in name} == {"slice-2x2-4"}


def test_claim_of_two_parts_of_the_cache_is_rejected(tmp_path: Path) -> None:
    """A container is in one group, so it would have the ways of one part only."""
    resctrl, sysfs = module("resctrl"), tree("resctrl", tmp_path)
    settings = resctrl.Settings(resctrl=sysfs / "fs/resctrl", cpu=sysfs / "devices/system/cpu/cpu0")
    cache = resctrl.Cache(SimpleNamespace(settings=settings))
    provider = resctrl.Parts()
    provider.hardware = cache
    parts = devices(provider, settings)
    with (
        unit(resctrl.driver, settings=settings, hardware=cache) as bench,
        pytest.raises(dra_kit.PermanentError, match="2 parts of the cache"),
    ):
        bench.prepare("cache", [parts["l3-1-ways-at-4"], parts["l3-2-ways-at-6"]])

    assert not [*(sysfs / "fs/resctrl").glob("dra-*")]


def test_accelerator_that_is_gone_is_unhealthy_and_the_others_are_watched(tmp_path: Path) -> None:
    gaudi, sysfs = module("intel-gaudi"), tree("intel-gaudi", tmp_path)
    settings = gaudi.Settings(sysfs=sysfs)
    found = devices(gaudi.Gaudis(), settings)
    first, *others = found.values()
    (first.folder / "status").unlink()
    health = gaudi.GaudiHealth()
    health.devices = [*found.values()]
    health.context = SimpleNamespace(settings=settings, stopping=SimpleNamespace(blocking_sleep=lambda _: True))

    reports = [*health.watch()]

    assert [type(report).__name__ for report in reports] == ["Unhealthy", *["Healthy"] * len(others)]
    assert not health.recovered(first, "not-operational")
    assert health.recovered(others[0], "not-operational")


def test_partitions_whose_render_node_is_unknown_are_not_offered(tmp_path: Path) -> None:
    """The kernel stops when it has no numbers left. A guess would give a container the partition of another one."""
    amd, sysfs = module("amd-gpu"), tree("amd-gpu", tmp_path)
    shutil.rmtree(sysfs / "devices/platform/amdgpu_xcp_3")

    found = devices(amd.Partitions(), amd.Settings(sysfs=sysfs))

    assert found
    assert {name for name in found if not name.endswith("-0")} == set()


def slices_of(driver: str, pool: str, device: str) -> dict[str, Any]:
    attributes = {"resource.kubernetes.io/pcieRoot": {"string": "pci0000:00"}}
    spec = {"driver": driver, "nodeName": "node-1", "pool": {"name": pool}}
    return {"spec": {**spec, "devices": [{"name": device, "attributes": attributes}]}}


class Cluster:
    """A cluster with slices of two drivers; it accepts the rules that Kubernetes would accept."""

    def __init__(self, *items: dict[str, Any]) -> None:
        self.items, self.rules = items, list[str]()

    def list(self, api: str, plural: str, **_: str) -> Any:
        return SimpleNamespace(result=lambda: self.items if plural == "resourceslices" else ())

    def apply(self, plural: str, manifest: dict[str, Any], **_: str) -> Any:
        assert is_dns_subdomain(manifest["metadata"]["name"])
        self.rules.append(manifest["metadata"]["name"])
        return SimpleNamespace(result=lambda: None)


def is_dns_subdomain(name: str) -> bool:
    return len(name) <= 253 and bool(re.fullmatch(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?", name))


@pytest.mark.parametrize("device", ["gpu-0", "g" * 63])
def test_names_of_parts_may_be_any_that_kubernetes_allows(device: str) -> None:
    pairs = module("gpu-and-nic")
    cluster = Cluster(
        slices_of("gpu.example.com", f"node-1/{'x' * 200}", device), slices_of("nic.example.com", "node-1", "n" * 63)
    )

    found = devices(pairs.Pairs(), pairs.Settings(), cluster=cluster)

    assert len(found) == 1
    assert all(len(name) <= 63 for name in found)
    assert len({*cluster.rules}) == 2
