"""How ``dra-kit sandbox`` ends, in the foreground and in the background, and that nothing is left behind."""

from __future__ import annotations

import json
import signal
import subprocess
import textwrap
import time

import pytest

from tests.unit.cli.kitchen import Kitchen, pod, sleeping

pytestmark = pytest.mark.processes


def test_an_interruption_takes_everything_down(kitchen: Kitchen) -> None:
    kitchen.order(pod("guest", "sleep", kitchen.nap))
    with kitchen.start("./pizzeria.py", "-f", "order.yaml") as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "Pod guest is Running" in line:
                process.send_signal(signal.SIGINT)
                break
        *_, last = process.stdout
        assert process.wait(60) == 130

    assert last == "everything is stopped\n"
    assert kitchen.left_behind() == []
    assert not sleeping(kitchen.nap)


def test_a_sandbox_in_the_background(kitchen: Kitchen) -> None:
    kitchen.order(pod("guest", "sleep", kitchen.nap))
    kubeconfig = kitchen.directory / "kubeconfig"

    text = kitchen.run("./pizzeria.py", "-f", "order.yaml", "--detach", "--kubeconfig", "kubeconfig")
    written = [kitchen.directory / "kubeconfig", *(kitchen.directory / "run").glob("*/*")]
    assert {path.stat().st_mode & 0o777 for path in written} == {0o600}
    assert len(written) == 3

    assert "dra.pizza runs in a cluster in the background" in text
    assert json.loads(kubeconfig.read_text())["kind"] == "Config"
    listed = kitchen.run("list")
    assert listed.startswith("dra.pizza, process ")
    for command in ("kubectl --kubeconfig", "dra-kit sandbox down --kubeconfig"):
        assert f"  {command} {kubeconfig}" in listed
    assert "the sandbox of dra.pizza has stopped" in kitchen.run("down")
    assert kitchen.call("list").startswith("no sandbox is running in the background")
    assert not kubeconfig.exists()
    assert kitchen.left_behind() == []
    assert not sleeping(kitchen.nap)
    assert "no sandbox is running in the background" in kitchen.call("down", code=2)


WAITS = """
if "DRA_KIT_SANDBOX_STATE" in os.environ:  # the process in the background
    from dra_kit.sandbox.run import session

    session._UNDO_SECONDS = LIMIT
"""
EFFECT = """
    class Mode(dra.Effect[None], id="mode"):
        def keys(self):
            return ["oven"]

        def apply(self, previous):
            pathlib.Path("oven").write_text("hot")

        def revert(self, outcome):
            if pathlib.Path("broken").exists():
                raise dra.TransientError("the oven is locked")
            pathlib.Path("oven").write_text("cold")
"""


def with_effect(text: str, undo_seconds: float) -> str:
    """A driver whose claims change the file ``oven``, in a sandbox that waits so long until that is undone."""
    head = "import dra_kit as dra"
    waits = WAITS.replace("LIMIT", str(undo_seconds))
    text = text.replace(head, f"import os\nimport pathlib\n\n{head}\n{waits}{textwrap.dedent(EFFECT)}", 1)
    text = text.replace("preparer=Waiter()", "preparer=Waiter(), effects=[Mode]")
    last = "        return dra.Prepared("
    return text.replace(last, f"        device.ensure(Mode()).result()\n{last}")


@pytest.mark.parametrize("broken", [False, True])
def test_down_undoes_changes_of_hardware_or_names_them(kitchen: Kitchen, *, broken: bool) -> None:
    driver = kitchen.directory / "pizzeria.py"
    driver.write_text(with_effect(driver.read_text(), undo_seconds=2.0 if broken else 60.0))
    kitchen.order(pod("guest", "sleep", kitchen.nap, restart="Always"))
    kitchen.run("./pizzeria.py", "-f", "order.yaml", "--detach")
    oven = kitchen.directory / "oven"
    end = time.monotonic() + 60
    while not oven.exists():
        assert time.monotonic() < end
        time.sleep(0.05)
    if broken:
        (kitchen.directory / "broken").touch()

    text = kitchen.run("down")

    remain = "these changes of hardware remain; undo them manually:\n  effect mode with {}\n"
    assert (oven.read_text(), remain in text) == (("hot", True) if broken else ("cold", False))
    assert "the sandbox of dra.pizza has stopped" in text


def test_one_of_several_in_the_background_is_ended_by_its_kubeconfig(kitchen: Kitchen) -> None:
    for name in ("one", "two"):
        told = kitchen.run("./pizzeria.py", "--no-webhook", "--detach", "--kubeconfig", name)
        assert f"dra-kit sandbox down --kubeconfig {kitchen.directory / name}" in told

    text = kitchen.call("down", code=2)
    assert "2 sandboxes are running in the background; choose one" in text
    for name in ("one", "two"):
        assert f"dra-kit sandbox down --kubeconfig {kitchen.directory / name}" in text

    kitchen.run("down", "--kubeconfig", "one")
    assert not (kitchen.directory / "one").exists()
    assert (kitchen.directory / "two").exists()

    refusal = kitchen.call("./pizzeria.py", "--detach", "--kubeconfig", "two", code=2)
    assert "--kubeconfig two is in use by the sandbox of dra.pizza in the background, process" in refusal
    assert f"stop that sandbox: dra-kit sandbox down --kubeconfig {kitchen.directory / 'two'}" in refusal

    kitchen.call("down", "--all")
    assert kitchen.left_behind() == []


def test_down_has_help_of_its_own(kitchen: Kitchen) -> None:
    text = kitchen.call("down", "--help")

    assert "Usage: dra-kit sandbox down [OPTIONS]" in text
    assert "--all" in text
    assert "--nodes" not in text


def test_misspelt_subcommand_gets_a_suggestion(kitchen: Kitchen) -> None:
    assert 'did you mean "down"? [invalid-target]' in kitchen.call("dwon", code=2)
    assert 'did you mean "list"? [invalid-target]' in kitchen.call("lst", code=2)
    assert "did you mean" not in kitchen.call("pizza_oven", code=2)


def test_sandbox_exits_when_its_output_is_closed(kitchen: Kitchen) -> None:
    kitchen.order(pod("guest", "sleep", kitchen.nap))
    with subprocess.Popen(
        kitchen.command("./pizzeria.py", "-f", "order.yaml"),
        cwd=kitchen.directory,
        env=kitchen.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(60) == 141

    assert kitchen.left_behind() == []


def test_a_detached_sandbox_that_does_not_come_up(kitchen: Kitchen) -> None:
    kitchen.driver(discover='raise ValueError("no gas")\n        yield []')

    assert "ValueError: no gas" in kitchen.run("./pizzeria.py", "--detach", code=2)


def test_a_detached_sandbox_tells_an_error_with_one_code(kitchen: Kitchen) -> None:
    kitchen.order(pod("no_name", "true"))

    text = kitchen.run("./pizzeria.py", "-f", "order.yaml", "--detach", code=2)

    assert "the sandbox did not come up: manifest order.yaml, document 3: " in text
    assert "[kube-invalid]" in text
    assert "[sandbox]" not in text


def test_kept_sandbox_prints_how_to_explain_waiting_pods(kitchen: Kitchen) -> None:
    kitchen.order(pod("lost", "true", resourceClaimName="nothere"))

    with kitchen.start(
        "./pizzeria.py", "-f", "order.yaml", "--keep", "--timeout", "0.5", "--kubeconfig", "kubeconfig"
    ) as process:
        assert process.stdout is not None
        told = next(line for line in process.stdout if "dra-kit explain" in line)
        for line in process.stdout:
            if "everything runs until Ctrl-C" in line:
                process.send_signal(signal.SIGINT)
        assert process.wait(60) == 1

    assert told.strip() == f"dra-kit explain pod lost -n default --kubeconfig {kitchen.directory / 'kubeconfig'}"
