"""Changes of hardware are undone when a sandbox is stopped, or named."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pytest
import yaml
from msgspec.structs import replace

import dra_kit as dra
from dra_kit.sandbox.cluster import SandboxSettings
from dra_kit.sandbox.drivers.sandbox_driver import SandboxDriver
from dra_kit.sandbox.run.session import RunTask, SandboxSession
from dra_kit.sandbox.views.live import LiveView
from tests.unit.cli.kitchen import CLASS, TEMPLATE, pod
from tests.unit.sandbox.cluster.kubelet.polling import until

pytestmark = pytest.mark.processes  # containers are processes, and each test takes seconds


class Mode(dra.Effect[None], id="mode"):
    """The mode of an oven, a file; it cannot be restored while a file ``broken`` is next to it."""

    path: str

    def keys(self) -> Iterable[str]:
        return [self.path]

    def apply(self, previous: None) -> None:
        Path(self.path).write_text("hot")

    def revert(self, outcome: None) -> None:
        if Path(self.path).with_name("broken").exists():
            raise dra.TransientError("the oven is locked")
        Path(self.path).write_text("cold")


class Oven(dra.DeviceProvider):
    def discover(self) -> Iterator[Sequence[dra.Device]]:
        yield [dra.Device(name="pizza-0")]


def session_of(tmp_path: Path, shown: io.StringIO, task: RunTask, *workloads: dict[str, object]) -> SandboxSession:
    """Return a run of workloads whose claims change the file ``oven``."""

    class Heater(dra.Preparer):
        async def prepare(self, claim: dra.Claim, device: dra.AllocatedDevice) -> dra.Prepared:
            await device.ensure(Mode(path=str(tmp_path / "oven")))
            return dra.Prepared(env={"A": "1"})

    order = tmp_path / "order.yaml"
    order.write_text(yaml.safe_dump_all([CLASS, TEMPLATE, *workloads]))
    driver = SandboxDriver((dra.Driver("dra.pizza", provider=Oven(), preparer=Heater(), effects=[Mode]),))
    settings = SandboxSettings(webhook=False, controller=False)
    return SandboxSession([driver], settings, replace(task, files=(order,)), LiveView(shown))


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine takes longer than a user waits for."""
    monkeypatch.setattr("dra_kit.sandbox.run.session._UNDO_SECONDS", 60.0)


async def interrupted(tmp_path: Path, *workloads: dict[str, object]) -> tuple[SandboxSession, str]:
    """Run until a pod with the effect runs, and interrupt that; return the session and what it showed."""
    shown = io.StringIO()
    session = session_of(tmp_path, shown, RunTask(keep=True), *workloads)
    work = asyncio.create_task(session.run())
    await until(lambda: session.lasting or work.done())
    assert (tmp_path / "oven").read_text() == "hot"
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    return session, shown.getvalue()


DEPLOYMENT = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "bakery"},
    "spec": {
        "selector": {"matchLabels": {"app": "bakery"}},
        "template": {
            "metadata": {"labels": {"app": "bakery"}},
            "spec": {**pod("guest", "sleep", "300")["spec"], "restartPolicy": "Always"},
        },
    },
}


@pytest.mark.parametrize("workload", [pod("guest", "sleep", "300", restart="Always"), DEPLOYMENT])
async def test_effects_are_undone_when_a_run_is_interrupted(tmp_path: Path, workload: dict[str, object]) -> None:
    session, text = await interrupted(tmp_path, workload)

    assert (tmp_path / "oven").read_text() == "cold"
    assert (session.remaining, session.exit_code) == ([], 0)
    assert "deleting pods to undo 1 change of hardware" in text


async def test_only_pods_with_claims_are_deleted_to_undo_effects(tmp_path: Path) -> None:
    driver = pod("driver", "sleep", "300", restart="Always")  # drivers have no claims, and undo the effects
    driver["spec"] |= {"resourceClaims": [], "containers": [{**driver["spec"]["containers"][0], "resources": {}}]}

    session, text = await interrupted(tmp_path, pod("guest", "sleep", "300", restart="Always"), driver)

    assert (tmp_path / "oven").read_text() == "cold"
    assert session.remaining == []
    assert "Pod guest is being deleted" in text
    assert "Pod driver is being deleted" not in text


async def test_effects_that_cannot_be_undone_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dra_kit.sandbox.run.session._UNDO_SECONDS", 1.0)
    (tmp_path / "broken").touch()

    session, _ = await interrupted(tmp_path, pod("guest", "sleep", "300", restart="Always"))

    assert session.remaining == [f'effect mode with {{"path":"{tmp_path}/oven"}}']
    assert session.exit_code == 1


async def test_effects_are_named_if_the_undo_is_interrupted(tmp_path: Path) -> None:
    (tmp_path / "broken").touch()
    shown = io.StringIO()
    session = session_of(tmp_path, shown, RunTask(keep=True), pod("guest", "sleep", "300", restart="Always"))
    work = asyncio.create_task(session.run())
    await until(lambda: session.lasting or work.done())
    work.cancel()
    await until(lambda: "deleting pods to undo" in shown.getvalue() or work.done())
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work

    assert session.remaining == [f'effect mode with {{"path":"{tmp_path}/oven"}}']


async def test_effect_that_a_run_leaves_behind_is_reported_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dra_kit.sandbox.run.session._CLEAN_SECONDS", 1.0)
    (tmp_path / "broken").touch()
    shown = io.StringIO()
    for timeout in (6.0, 40.0):  # a busy machine takes longer until the claim is prepared
        # the pod has not succeeded before its claim is released
        session = session_of(tmp_path, shown, RunTask(timeout=timeout), pod("guest", "true"))
        assert await session.run() == 1
        if session.remaining:
            break

    assert session.remaining == [f'effect mode with {{"path":"{tmp_path}/oven"}}']
    assert "deleting pods to undo" not in shown.getvalue()
