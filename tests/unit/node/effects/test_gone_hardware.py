"""Effects whose hardware does not exist any more: nothing is left to revert, and nothing can be applied."""

from __future__ import annotations

import asyncio
import errno
import logging
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import dra_kit as dra
from dra_kit.testing import unit
from tests.support.api import eventually
from tests.unit.node.claims.test_of_no_node import Warehouse, publish
from tests.unit.node.drivers import Doing, Oven, driver
from tests.unit.node.role import Node

FORGOTTEN = "effect not reverted, its hardware does not exist any more"


class Clock(dra.Effect[str], id="clock"):
    """The clock of a card, a file in the folder of the card."""

    path: str

    def keys(self) -> Iterable[str]:
        return [self.path]

    def apply(self, previous: str | None) -> str:
        path = Path(self.path)
        former = previous or path.read_text()
        path.write_text("1800")
        return former

    def holds(self, outcome: str) -> bool:
        return Path(self.path).read_text() == "1800"

    def revert(self, outcome: str | None) -> None:
        path = Path(self.path)
        path.read_text()
        path.write_text(outcome or "1200")


@pytest.fixture
def card(tmp_path: Path) -> Path:
    folder = tmp_path / "pizza-0"
    folder.mkdir()
    (folder / "clock").write_text("1200")
    return folder / "clock"


def clocked(card: Path, oven: dra.DeviceProvider | None = None, **options: Any) -> dra.Driver[Any, Any]:
    async def prepare(claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
        return dra.Prepared(env={"FORMER": await device.ensure(Clock(path=str(card)))})

    return driver(Doing(prepare), oven, effects=[Clock], **options)


def logged(caplog: pytest.LogCaptureFixture, message: str) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.getMessage() == message]


async def test_effect_on_a_device_whose_folder_is_gone_is_forgotten(
    node: Node, card: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lunch = node.claim()
    async with node.running(clocked(card)):
        await node.prepare(lunch)
        shutil.rmtree(card.parent)
        await node.unprepare(lunch)
        assert node.is_clean()
    [record] = logged(caplog, FORGOTTEN)
    assert (record.levelname, record.exc_info) == ("WARNING", None)
    assert str(card) in vars(record)["error"]


async def test_missing_folder_of_another_name_keeps_the_effect(
    node: Node, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mounted = tmp_path / "mount"
    mounted.mkdir()
    (mounted / "clock").write_text("1200")
    lunch = node.claim()
    async with node.running(clocked(mounted / "clock")):
        await node.prepare(lunch)
        mounted.rename(tmp_path / "elsewhere")  # as in a pod that lacks a mount
        with pytest.raises(dra.DraKitError, match=r"Clock\.revert raised FileNotFoundError"):
            await node.unprepare(lunch)
        (tmp_path / "elsewhere").rename(mounted)
        await node.unprepare(lunch)
        assert node.is_clean()
    assert (mounted / "clock").read_text() == "1200"
    assert not logged(caplog, FORGOTTEN)


class Late(dra.DeviceProvider):
    """Finds its device when the test says so."""

    def __init__(self) -> None:
        self.found = threading.Event()

    def discover(self) -> Iterator[Sequence[dra.Device]]:
        self.found.wait(60)
        yield [dra.Device(name="pizza-0")]


async def test_missing_folder_keeps_the_effect_until_the_first_inventory(
    node: Node, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mounted, lunch, late = tmp_path / "mount", node.claim(), Late()
    mounted.mkdir()
    (mounted / "clock").write_text("1200")
    await node.prepared_by(clocked(mounted / "clock"), lunch)
    mounted.rename(tmp_path / "elsewhere")  # as in a new pod that lacks a mount
    async with node.running(clocked(mounted / "clock", late)):
        assert "Clock.revert raised FileNotFoundError" in await node.unprepare_error(lunch)
        late.found.set()
        await eventually(node.published)
        assert "Clock.revert raised FileNotFoundError" in await node.unprepare_error(lunch)
        (tmp_path / "elsewhere").rename(mounted)
        await node.unprepare(lunch)
        assert node.is_clean()
    assert (mounted / "clock").read_text() == "1200"
    assert not logged(caplog, FORGOTTEN)


async def test_file_of_a_present_device_keeps_the_effect_while_another_device_is_gone(node: Node, card: Path) -> None:
    oven, lunch = Oven("pizza-0", "pizza-1"), node.claim("lunch", ["pizza-0", "pizza-1"])
    async with node.running(clocked(card, oven)):
        await node.prepare(lunch)
        oven.devices = ("pizza-0",)
        oven.context.rescan()
        await eventually(lambda: node.published() == ["pizza-0"])
        card.unlink()
        assert "Clock.revert raised FileNotFoundError" in await node.unprepare_error(lunch)
        card.write_text("1800")
        await node.unprepare(lunch)
        assert node.is_clean()
    assert card.read_text() == "1200"


async def test_missing_file_of_a_device_of_a_cluster_wide_pool_keeps_the_effect(node: Node, card: Path) -> None:
    publish(node, "disk-0")
    far = node.claim("far", [{"device": "disk-0", "pool": "warehouse"}])
    async with node.running(clocked(card, cluster_provider=Warehouse())):
        await node.prepare(far)
        card.unlink()
        with pytest.raises(dra.DraKitError, match=r"Clock\.revert raised FileNotFoundError"):
            await node.unprepare(far)
        card.write_text("1200")
        await node.unprepare(far)
        assert node.is_clean()


async def test_missing_file_of_a_present_device_is_an_error_until_the_inventory_lacks_it(
    node: Node, card: Path, caplog: pytest.LogCaptureFixture
) -> None:
    oven, lunch = Oven("pizza-0", "pizza-1"), node.claim()
    async with node.running(clocked(card, oven)):
        await node.prepare(lunch)
        card.unlink()
        with pytest.raises(dra.DraKitError, match=r"Clock\.revert raised FileNotFoundError"):
            await node.unprepare(lunch)
        with pytest.raises(dra.DraKitError, match=r"Clock\.revert raised FileNotFoundError"):
            await node.unprepare(lunch)
        [first, second] = logged(caplog, "effect not reverted")
        assert (bool(first.exc_info), bool(second.exc_info)) == (True, False), "the traceback is logged once"
        oven.devices = ("pizza-1",)
        oven.context.rescan()
        await eventually(lambda: node.published() == ["pizza-1"])
        await node.unprepare(lunch)
        assert node.is_clean()


async def test_inventory_is_looked_at_again_after_a_file_is_missing(node: Node, card: Path) -> None:
    oven, lunch = Oven("pizza-0", "pizza-1"), node.claim()
    async with node.running(clocked(card, oven)):
        await node.prepare(lunch)
        card.unlink()
        oven.devices = ("pizza-1",)  # which no code has noticed
        with pytest.raises(dra.DraKitError, match=r"Clock\.revert raised FileNotFoundError"):
            await node.unprepare(lunch)
        await eventually(lambda: node.published() == ["pizza-1"])
        await node.unprepare(lunch)
        assert node.is_clean()


async def test_apply_on_hardware_that_is_gone_is_an_error_that_names_the_device(
    node: Node, card: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.rmtree(card.parent)
    async with node.running(clocked(card)):
        text = await node.error(node.claim())
        assert text == (
            'effect clock {"path":"(a path)"} cannot be applied, because device node-1/pizza-0 does not exist any '
            "more; it can be applied when the device is back, or delete the pod to get another device"
        )
        assert node.is_clean()
    [record] = logged(caplog, "claim not prepared")
    assert (vars(record)["code"], record.exc_info) == ("hardware-gone", None)
    assert "Clock.apply raised FileNotFoundError" in vars(record)["error"]


async def test_effect_on_gone_hardware_is_applied_when_the_device_is_back(node: Node, card: Path) -> None:
    shutil.rmtree(card.parent)
    lunch = node.claim()
    async with node.running(clocked(card)):
        await node.error(lunch)
        card.parent.mkdir()
        card.write_text("1200")
        await node.prepare(lunch)
        assert card.read_text() == "1800"


async def test_hardware_that_vanishes_is_checked_without_tracebacks(
    node: Node, card: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lunch = node.claim()
    async with node.running(clocked(card), effects_interval=0.02):
        await node.prepare(lunch)
        shutil.rmtree(card.parent)
        await eventually(lambda: logged(caplog, "effect not verified"))
        await asyncio.sleep(0.2)  # ten times as long as until the next check
        await node.unprepare(lunch)
    [record] = logged(caplog, "effect not verified")
    assert vars(record)["error"].startswith("Clock.holds raised FileNotFoundError")
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENXIO, "No such device or address", "/dev/pizza0"),
        OSError(errno.ENODEV, "No such device", "/sys/bus/pci/drivers/pizza/unbind"),  # a device without a driver
        OSError(errno.ENODEV, "No such device"),
        FileNotFoundError(errno.ENOENT, "No such file or directory", "/dev/pizza0"),
        FileNotFoundError(errno.ENOENT, "No such file or directory", "/sys/bus/pci/drivers/pizza/bind"),
        FileNotFoundError(errno.ENOENT, "No such file or directory", "/sys/class/net/pizza0/mtu"),
    ],
)
async def test_what_a_missing_module_or_mount_explains_keeps_the_effect_of_a_present_device(
    node: Node, error: OSError, monkeypatch: pytest.MonkeyPatch
) -> None:
    lunch = node.claim()
    async with node.running(driver(Raiser(), effects=[Raising])):
        await eventually(node.published)
        await node.prepare(lunch)
        monkeypatch.setattr(f"{__name__}.revert", fail(error))
        assert "could not be reverted" in await node.unprepare_error(lunch)
        monkeypatch.setattr(f"{__name__}.revert", lambda: None)
        await node.unprepare(lunch)
        assert node.is_clean()


@pytest.mark.parametrize("path", ["/sys/bus/pci/drivers/pizza/unbind", None])
async def test_kernel_that_knows_no_such_device_is_believed_once_the_inventory_lacks_it(
    node: Node, path: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    oven, lunch = Oven("pizza-0", "pizza-1"), node.claim()
    async with node.running(driver(Raiser(), oven, effects=[Raising])):
        await node.prepare(lunch)
        oven.devices = ("pizza-1",)
        monkeypatch.setattr(f"{__name__}.revert", fail(OSError(errno.ENODEV, "No such device", path)))
        assert "could not be reverted" in await node.unprepare_error(lunch)
        await eventually(lambda: node.published() == ["pizza-1"])
        await node.unprepare(lunch)
        assert node.is_clean()


@pytest.mark.parametrize("code", [errno.ENOENT, errno.ENODEV])
async def test_missing_sys_folder_of_a_device_shows_that_it_is_gone(
    node: Node, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = "/sys/bus/pci/devices/0000:ff:1f.7/reset"
    lunch = node.claim()
    async with node.running(driver(Raiser(), effects=[Raising])):
        await eventually(node.published)
        await node.prepare(lunch)
        monkeypatch.setattr(f"{__name__}.revert", fail(OSError(code, "No such device", path)))
        await node.unprepare(lunch)
        assert node.is_clean()


class Raising(dra.Effect[int], id="raising"):
    """Raises what a test says when it is reverted."""

    def keys(self) -> Iterable[str]:
        return ["raising"]

    def apply(self, previous: int | None) -> int:
        return 1

    def revert(self, outcome: int | None) -> None:
        revert()


def revert() -> None:
    raise AssertionError("must be set by the test")


class Raiser(dra.Preparer):
    async def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
        number = await device.ensure(Raising())
        return dra.Prepared(env={"A": str(number)})


def fail(error: Exception) -> Callable[[], None]:
    def fails() -> None:
        raise error

    return fails


@pytest.mark.parametrize(
    "error",
    [
        dra.HardwareGone("the card is lost"),
        OSError(errno.ENODEV, "No such device"),
        OSError(errno.ENXIO, "No such device or address", "/dev/pizza0"),
        FileNotFoundError(errno.ENOENT, "No such file or directory", "/dev/pizza0"),
        FileNotFoundError(errno.ENOENT, "No such file or directory", "/sys/bus/pci/devices/0000:ff:1f.7/reset"),
    ],
)
def test_errors_that_mean_that_hardware_is_gone(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.revert", fail(error))
    with unit(Raiser(), effects=[Raising]) as bench:
        bench.prepare("lunch", [dra.Device(name="pizza-0")])
        bench.unprepare("lunch")
        assert not bench.effects


def _start_missing_program() -> None:
    subprocess.run(["/nowhere/bin/pizza-tool"], check=True)


@pytest.mark.parametrize(
    "failing",
    [
        _start_missing_program,
        fail(FileNotFoundError(errno.ENOENT, "No such file or directory", "/tmp/of-a-mistake")),
        fail(OSError(errno.ENXIO, "No such device or address", "/run/pipe")),  # a pipe without a reader
        fail(OSError(errno.ENODEV, "No such device", "/mnt/pizza")),  # mount without the file system's module
        fail(OSError(errno.EIO, "Input/output error", "/dev/pizza0")),
        fail(RuntimeError("no gas")),
    ],
)
def test_other_errors_keep_the_effect(failing: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.revert", failing)
    with unit(Raiser(), effects=[Raising]) as bench:
        bench.prepare("lunch", [dra.Device(name="pizza-0")])
        with pytest.raises(dra.TransientError, match="could not be reverted"):
            bench.unprepare("lunch")
        assert len(bench.effects) == 1
        monkeypatch.setattr(f"{__name__}.revert", lambda: None)
        bench.unprepare("lunch")
