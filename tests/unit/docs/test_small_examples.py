"""The Python examples of pages that have one: they do what the page says. test_how_to.py checks their types."""

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import dra_kit as dra
from dra_kit.testing import sandbox, unit

DOCS = Path(__file__).resolve().parents[3] / "docs"
WHY_EFFECTS = "explanation/why-effects.md"
MIGRATION = "how-to/migrate-from-a-device-plugin.md"


def code(page: str) -> str:
    text = (DOCS / page).read_text(encoding="utf-8")
    return "\n\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL))


def module(page: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    made = ModuleType(Path(page).stem.replace("-", "_"))
    monkeypatch.setitem(sys.modules, made.__name__, made)  # generic models look for their module there
    exec(compile(code(page), page, "exec"), made.__dict__)  # noqa: S102 - our own page
    return made


class FakeCard:
    def __init__(self) -> None:
        self.parts: dict[str, str] = {}

    def find(self, owner: str) -> str | None:
        return self.parts.get(owner)

    def create(self, profile: str, owner: str) -> str:
        assert owner not in self.parts
        return self.parts.setdefault(owner, f"uuid-{profile}")

    def destroy(self, owner: str) -> None:
        del self.parts[owner]


def test_the_partition_of_why_effects_is_made_once_and_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    page = module(WHY_EFFECTS, monkeypatch)

    class Parts(dra.Preparer):
        async def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
            return dra.Prepared(env={"UUID": await device.ensure(page.Partition(profile="1g", owner=claim.uid))})

    card = FakeCard()
    with unit(Parts(), effects=[page.Partition], hardware=card) as bench:
        for _ in range(2):
            [prepared] = bench.prepare("lunch", [dra.Device(name="card-0")])
            assert prepared.env == {"UUID": "uuid-1g"}
        assert len(card.parts) == 1
        page.Partition(profile="1g", owner="uid-lunch").with_hardware(card).apply(None)  # after a crash in the middle
        bench.unprepare("lunch")
    assert card.parts == {}


def test_the_serial_port_of_the_migration_gets_its_file(monkeypatch: pytest.MonkeyPatch) -> None:
    page = module(MIGRATION, monkeypatch)
    with unit(page.driver) as bench:
        [prepared] = bench.prepare("lunch", [page.port(Path("/dev/ttyUSB0"))])
    assert prepared.env == {"TTYUSB0_PORT": "/dev/ttyUSB0"}
    assert [node.path for node in prepared.device_nodes] == ["/dev/ttyUSB0"]


def manifests(page: str) -> list[str]:
    return re.findall(r"```yaml\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL)


def test_pods_of_before_and_after_the_migration_get_a_port(tmp_path: Path) -> None:
    page = MIGRATION
    for name in ("ttyUSB0", "ttyUSB1"):
        (tmp_path / name).touch()
    (tmp_path / "driver.py").write_text(code(page).replace('Path("/dev")', f'Path("{tmp_path}")'), encoding="utf-8")
    before, after, bridge = manifests(page)
    with sandbox(str(tmp_path / "driver.py")) as bed, bed.harness("migration", directory=tmp_path) as dra_:
        dra_.apply(bridge, before, after)
        given = [dra_.wait(pod).containers["main"].environment for pod in ("before", "after")]
    ports = {variables[name] for variables in given for name in variables if re.fullmatch("TTYUSB._PORT", name)}
    assert ports == {f"{tmp_path}/ttyUSB0", f"{tmp_path}/ttyUSB1"}
