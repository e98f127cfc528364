"""The gallery: short drivers, each with a README that is true and a story that passes."""

from __future__ import annotations

import importlib.util
import inspect
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
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
    return {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.mark.processes
@pytest.mark.timeout(300)
@entries
def test_command_of_readme_runs_the_story(folder: Path) -> None:
    words, place, before = command(folder), folder.relative_to(ROOT), contents(folder)
    assert words[0] == str(place)
    assert words[-2:] == ["--story", f"{place}/story"]

    run = subprocess.run(
        [sys.executable, "-m", "dra_kit", "sandbox", *words], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert run.returncode == 0, run.stdout[-8000:] + run.stderr
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
