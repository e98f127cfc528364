"""What is known of public drivers, which are tried and judged where their sources are given."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from dra_kit.conformance.profile import read_profile
from dra_kit.sandbox.containers.nri import NriServer
from tests.unit.sandbox.cluster.kubelet.polling import until
from tests.upstream import __main__ as upstream
from tests.upstream.__main__ import OUTCOMES, Example, Place, UpstreamDriver, commands, load_drivers, problem
from tests.upstream.node import NoContainers, wait_for_runtime

DRIVERS = load_drivers()


@pytest.mark.parametrize("name", DRIVERS)
def test_each_example_says_what_is_expected_and_why(name: str) -> None:
    for example in DRIVERS[name].examples:
        assert example.outcome in OUTCOMES
        assert example.outcome == "runs" or (example.says and example.why), example.files
        assert bool(example.link) == bool(example.says_without), example.files


@pytest.mark.parametrize("name", [name for name, driver in DRIVERS.items() if driver.judge])
def test_each_driver_that_is_judged_has_a_profile(name: str) -> None:
    assert read_profile(Path(upstream.HERE / f"{name}.yaml")).driver


@pytest.mark.parametrize("name", DRIVERS)
def test_placeholders_of_commands_are_filled(name: str, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    place = Place(name, DRIVERS[name], tmp_path / "upstream", scratch)

    for _, words in commands(DRIVERS[name], place, scratch):
        assert not any("{" in word for word in words)
    repository = DRIVERS[name].repository or name
    assert place.lacks[:2] == [str(tmp_path / "upstream" / repository), str(tmp_path / "upstream/images" / name)]


@pytest.mark.parametrize(("has_link", "outcome"), [(True, "runs"), (False, "waits")])
def test_example_waits_where_the_kernel_lacks_its_interfaces(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, has_link: bool, outcome: str
) -> None:
    monkeypatch.setattr(upstream, "has_link", lambda _: has_link)
    driver = UpstreamDriver(
        "1", "--chart {sources}", (Example(("{here}/pod.yaml",), link="dummy", says_without="no dummy"),)
    )
    [(example, words)] = commands(driver, Place("oven", driver, tmp_path, tmp_path), tmp_path)

    assert example.outcome == outcome
    assert bool(problem(example, OUTCOMES[outcome], "Pod default/pod1 is Pending")) == (outcome == "waits")
    assert not problem(example, OUTCOMES[outcome], "Pod default/pod1 is Pending: no dummy")
    assert words[-1] == f"{upstream.HERE}/pod.yaml"


def test_values_of_an_example_replace_those_of_its_driver(tmp_path: Path) -> None:
    example = Example(("pod.yaml",), values={"a": 2}, outcome="waits", says="x", why="y")
    driver = UpstreamDriver("1", "--chart {sources}", (example,), values={"a": 1, "b": 1})
    [(_, words)] = commands(driver, Place("oven", driver, tmp_path, tmp_path), tmp_path)

    values = tmp_path / "values-0.yaml"
    expected = ["sandbox", "--chart", f"{tmp_path}/oven", "--values", f"{values}", "--timeout", "20"]
    assert words == [*expected, "-f", f"{tmp_path}/oven/pod.yaml"]
    assert values.read_text() == "a: 2\nb: 1\n"


def test_paths_with_spaces_stay_whole(tmp_path: Path) -> None:
    sources, scratch = tmp_path / "my sources", tmp_path / "my scratch"
    example = Example(("pod.yaml",), flags="--set x={sources}/y")
    driver = UpstreamDriver("1", "--chart {sources} --image a={image}", (example,), judge="A={image} {image}/b {node}")
    place = Place("oven", driver, sources, scratch)
    [(_, words)] = commands(driver, place, scratch)

    made, image = f"{sources}/oven", f"{sources}/images/oven"
    flags = ["--chart", made, "--image", f"a={image}", "--set", f"x={made}/y"]
    assert words == ["sandbox", *flags, "-f", f"{made}/pod.yaml"]
    assert place.words(driver.judge) == [f"A={image}", f"{image}/b", "{node}"]


@pytest.mark.parametrize(
    ("action", "only"), [("try", "dra-driver-cpus"), ("try", "dra-driver-cpu,x"), ("judge", "dra-driver-amd")]
)
def test_names_that_no_driver_has_are_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], action: str, only: str
) -> None:
    arguments = ["tests.upstream", action, str(tmp_path), "--reports", str(tmp_path / "reports"), "--only", only]
    monkeypatch.setattr(sys, "argv", arguments)
    with pytest.raises(SystemExit) as ended:
        upstream.main()

    assert ended.value.code == 2
    assert f"no driver to {action} is named {only.rpartition(',')[2]}; known are " in capsys.readouterr().err


@pytest.mark.processes
@pytest.mark.parametrize(
    ("command", "said"),
    [("false", "ended with exit code 1"), ("exec sleep 3600", "does not serve NRI within 0 s")],
)
def test_no_driver_starts_without_the_runtime_of_its_node(tmp_path: Path, command: str, said: str) -> None:
    with subprocess.Popen(["/bin/sh", "-c", command]) as runtime:
        if command == "false":
            runtime.wait()
        with pytest.raises(SystemExit, match=said):
            wait_for_runtime(runtime, tmp_path / "nri.sock", 0)
        assert runtime.wait(60) != 0


@pytest.mark.parametrize(
    ("code", "output", "expected"),
    [(1, "p is Pending", ""), (0, "p is Pending", "exit code 0, expected 1"), (1, "all is well", "'Pending' is not")],
)
def test_an_outcome_is_compared(code: int, output: str, expected: str) -> None:
    found = problem(Example((), outcome="waits", says="Pending"), code, output)
    assert found.startswith(expected)
    assert bool(found) == bool(expected)


async def test_a_runtime_ends_quietly_while_a_plugin_is_connected(tmp_path: Path) -> None:
    """``tests.upstream.node`` runs one for drivers that need NRI."""
    reported: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    with tempfile.TemporaryDirectory(prefix="n") as folder:
        async with NriServer(Path(folder) / "s", NoContainers(), runtime=("no-containers", "1")) as server:
            _, writer = await asyncio.open_unix_connection(server.socket)
            await until(lambda: server._serving)
        await asyncio.sleep(0)
        writer.close()
    assert reported == []
