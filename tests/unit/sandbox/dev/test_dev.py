"""``dra-kit dev``, told in lines: the driver follows its files, the cluster stays."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from tests.unit.sandbox.dev.desk import DRIVER, Desk, ended, times

pytestmark = pytest.mark.processes

SERVES = "pizzeria.py: the driver serves after"
RUNS = "Pod guest is Running"
PREPARES = r"preparing pizza-\d for"
CALLS = r"calls dra\.pizza: NodePrepareResources"

EFFECT = """
class Heat(dra.Effect[str], id="heat"):
    oven: str

    def keys(self):
        return [self.oven]

    def apply(self, previous):
        print("hot is", self.oven)
        return "hot"

    def revert(self, outcome):
        print("old: cold is", self.oven)
"""

CONFIG = """import dra_kit as dra


class PizzaConfig(dra.OpaqueConfig, api_version="pizza.example/v1"):
    cheese: str = "gouda"
"""
CHEESE = """devices:
      config:
      - opaque:
          driver: dra.pizza
          parameters: {apiVersion: pizza.example/v1, kind: PizzaConfig, cheese: brie}
"""


def test_new_code_serves_new_pods_while_claims_and_pods_stay(desk: Desk) -> None:
    desk.order("guest")
    desk.start("pizzeria.py", "-f", "order.yaml").until(RUNS)

    desk.edit('"CHEESE": "gouda"', '"CHEESE": "brie"')
    desk.until(SERVES)
    assert times(desk.text, PREPARES) == 1  # the device is the same one

    desk.edit("range(2)", "range(3)")
    desk.until("now offers 3 devices")
    desk.edit('"dough": "pan"', '"dough": "tin"')  # of the same length, soon after: no compiled file may be taken
    desk.until("preparing pizza-0")  # another device under its name
    desk.until("pizza-0  tin")
    assert times(desk.text, CALLS) == 1

    desk.order("guest", "host")
    desk.until("Pod host is Running")
    assert "CHEESE=brie" in desk.text
    assert "manifests: created Pod host\n" in desk.text

    assert desk.end() == 0
    before_end = desk.text.partition("shutting down")[0]
    assert "is being deleted" not in before_end
    assert "is lost" not in before_end  # the kubelet always had a connection
    assert desk.text.endswith("everything is stopped\n")


def test_new_code_takes_over_and_reverts_effects_as_it_does_when_the_user_quits(desk: Desk) -> None:
    text = DRIVER.replace("    def prepare(", "    async def prepare(").replace(
        "        print(f", "        await device.ensure(Heat(oven=device.name))\n        print(f"
    )
    text = text.replace("preparer=Waiter()", "preparer=Waiter(), effects=[Heat]")
    desk.file.write_text(text.replace("class Oven", EFFECT + "\n\nclass Oven"))
    desk.order("guest")
    desk.start("pizzeria.py", "-f", "order.yaml").until(RUNS)

    desk.edit("old: cold is", "new: cold is")
    desk.until(SERVES)
    desk.order()

    desk.until("new: cold is pizza-0")
    assert times(desk.text, "hot is pizza-0") == 1
    assert times(desk.text, "cold is pizza-0") == 1

    desk.until("manifests: deleted Pod guest\n")
    desk.order("host")
    desk.until("Pod host is Running")
    assert times(desk.text, "hot is pizza-0") == 2
    assert desk.end() == 0
    assert times(desk.text, "cold is pizza-0") == 2
    assert desk.text.endswith("everything is stopped\n")


def test_previous_driver_serves_if_the_new_one_does_not_come_up(desk: Desk) -> None:
    desk.order("guest")
    desk.start("pizzeria.py", "-f", "order.yaml").until(RUNS)

    desk.edit(
        "    def discover", '    def startup(self, context):\n        raise ValueError("no oven")\n\n    def discover'
    )
    desk.until("cannot be used; the previous code keeps serving", "ValueError: no oven at pizzeria.py:7")
    desk.order("guest", "host")

    desk.until("Pod host is Running")
    desk.edit("    def startup", "    def never_called")
    desk.until(SERVES)
    desk.edit("        yield [", '        raise KeyError("dough")\n        yield [')
    desk.until("discover failed: KeyError: 'dough' at pizzeria.py:10")


def test_killed_driver_is_reported_and_restarted(desk: Desk) -> None:
    desk.order("guest")
    desk.start("pizzeria.py", "-f", "order.yaml").until(RUNS)

    for process in desk.processes():
        os.kill(process, signal.SIGKILL)
    desk.until("the driver ended: its process was killed by SIGKILL", "start again: the driver serves")
    desk.order("guest", "host")

    desk.until("Pod host is Running")
    assert times(desk.text, r"preparing pizza-\d for guest") == 1


def test_killed_driver_is_restarted_although_its_own_file_changed(desk: Desk) -> None:
    desk.start("pizzeria.py").until("the driver serves")
    notes = desk.project / "notes.txt"
    # by another program, whose writing is not reported
    desk.edit("        yield [", f"        __import__('os').system('echo on >>{notes}')\n        yield [")
    desk.until("it is not watched any more")

    for _ in range(3):
        for process in desk.processes():
            with suppress(ProcessLookupError):  # of an update that has just ended
                os.kill(process, signal.SIGKILL)
        desk.until("the driver ended: its process was killed by SIGKILL")
        notes.write_text("off")
        desk.until("start again: the driver serves")


# --- code that cannot be used: one command, whose driver is repaired after each test


@pytest.fixture(scope="module")
def running() -> Iterator[Desk]:
    """A desk whose driver serves."""
    with tempfile.TemporaryDirectory(prefix="d-", dir="/tmp") as directory, Desk(Path(directory)) as made:
        made.start("pizzeria.py").until("the driver serves")
        yield made


@pytest.fixture
def serving(running: Desk) -> Iterator[Desk]:
    yield running
    if running.file.read_text() != DRIVER:
        running.save(running.file, DRIVER)
        running.until(SERVES)


def test_import_error_is_reported_and_the_previous_code_serves(serving: Desk) -> None:
    serving.edit("import dra_kit as dra\n", "import dra_kit as dra\nx = (\n")
    serving.until(
        "pizzeria.py: the new code cannot be used; the previous code keeps serving\n",
        "SyntaxError: '(' was never closed at pizzeria.py:3:5, in 'x = ('",
    )
    serving.edit("x = (\n", "import pizza_boxes\n")
    serving.until("ModuleNotFoundError: No module named 'pizza_boxes' at pizzeria.py:3; install it beside dra-kit")
    serving.edit("import pizza_boxes\n", "")

    serving.until(SERVES)


def test_hanging_start_is_abandoned_after_the_code_is_fixed(serving: Desk) -> None:
    serving.edit("        yield [", "        import time\n        time.sleep(4321)\n        yield [")
    serving.until("the driver does not serve yet", "discover")
    serving.edit("time.sleep(4321)", "time.sleep(0)")

    serving.until("it did not serve yet when a file changed again", SERVES)


def test_invalid_definition_and_changed_driver_name_are_reported(serving: Desk) -> None:
    serving.edit('"dra.pizza"', '"dra_pizza"')
    serving.until("cannot be used; the previous code keeps serving", "at pizzeria.py:16")
    serving.edit('"dra_pizza"', '"dra.pasta"')

    serving.until("the driver's name was dra.pizza and is dra.pasta now; restart dra-kit dev")


def test_exited_driver_process_is_reported_with_its_output(serving: Desk) -> None:
    serving.edit("        yield [", '        import os, sys\n        print("out of flour", file=sys.stderr)\n'
              "        os._exit(3)\n        yield [")  # fmt: skip

    serving.until("the previous code keeps serving", "its process ended with exit code 3: out of flour")


WRITES = """\
    async def discover(self):
        state = Path(__file__).parent / "state"
        for number in itertools.count():
            new = state / f"new-{os.getpid()}"  # the process of the next code writes beside this one
            new.write_text(str(number))
            new.rename(state / "degrees")
            yield [dra.Device(name=f"pizza-{i}", attributes={"dough": "pan"}) for i in range(2)]
            await asyncio.sleep(0.1)
"""


def test_files_that_the_driver_writes_do_not_restart_it(desk: Desk) -> None:
    (desk.project / "state").mkdir()
    discover = DRIVER[DRIVER.index("    def discover") : DRIVER.index("\n\nclass Waiter")]
    desk.edit(discover, WRITES)
    desk.edit(
        "import dra_kit as dra\n", "import asyncio, itertools, os\nfrom pathlib import Path\nimport dra_kit as dra\n"
    )
    with desk.start("./pizzeria.py"):
        desk.until("degrees is written by the driver; it is not watched: give the driver a setting with a path")
        desk.edit('"gouda"', '"edam"')
        desk.until("pizzeria.py: the driver serves after")
        assert desk.end() == 0
    assert "degrees: the driver serves" not in desk.text


def test_dev_waits_until_initially_broken_code_is_fixed_and_nothing_remains_after_it_is_killed(desk: Desk) -> None:
    desk.file.write_text("x = (\n")
    desk.start("pizzeria.py").until(f"waiting for a file below {desk.project} to change")

    desk.save(desk.file, DRIVER)

    desk.until("offers 2 devices on node-1")
    processes = desk.processes()
    assert processes

    desk.end(signal.SIGKILL)

    ended(processes)


def test_changed_manifests_are_applied(desk: Desk) -> None:
    desk.order("guest", "host")
    desk.start("pizzeria.py", "-f", "order.yaml").until("Pod host is Running")
    order = desk.project / "order.yaml"

    desk.save(order, order.read_text() + "---\n[")
    desk.until("manifests: not applied", "cannot be read")
    desk.order("host")
    desk.until("manifests: deleted Pod guest\n")
    desk.save(order, order.read_text().replace("4321", "1234"))

    desk.until("manifests: recreated Pod host\n")
    assert SERVES not in desk.text


def test_driver_file_of_globs_is_watched_outside_the_project(desk: Desk) -> None:
    globs = desk.directory / "zeros.yaml"
    globs.write_text("driver: zero.example.com\ndevices: 7\n")
    desk.start(str(globs)).until(f"waiting for {globs} to change")

    desk.save(globs, "driver: zero.example.com\ndevices:\n- paths: /dev/zero\n")
    desk.until("offers 1 device on node-1")

    desk.save(globs, "driver: zero.example.com\ndevices:\n- paths: /dev/zero\n- paths: /dev/full\n")
    desk.until("offers 2 devices on node-1")


def test_pods_keep_running_when_a_changed_manifest_is_rejected(desk: Desk) -> None:
    desk.edit("import dra_kit as dra", CONFIG)
    desk.edit("dra.Preparer)", "dra.Preparer[PizzaConfig])")
    desk.order("guest")
    order = desk.project / "order.yaml"
    order.write_text(order.read_text().replace("devices:\n", CHEESE, 1))
    desk.start("pizzeria.py", "-f", "order.yaml").until(RUNS)

    desk.save(order, order.read_text().replace("cheese: brie", "chese: brie"))
    desk.until("manifests: not applied", 'did you mean "cheese"')
    assert "is being deleted" not in desk.text

    desk.save(order, order.read_text().replace("chese: brie", "cheese: gouda"))
    desk.until("manifests: recreated Pod guest, ResourceClaimTemplate one-pizza\n", RUNS)


def test_project_is_found_in_the_working_directory(desk: Desk) -> None:
    (desk.project / "pyproject.toml").write_text('[tool.dra-kit]\ndriver = "pizzeria:driver"\n')

    desk.start("--nodes", "2", "--log-level", "info").until("offers 2 devices on node-2")

    assert desk.end() == 0
    assert "INFO slices.inventory: inventory devices=2" in desk.text


def kinds_on_page(desk: Desk) -> set[str]:
    """The kinds of the records that the page gets."""
    [(address, token)] = re.findall(r"page: (http://127\.0\.0\.1:\d+/)#token=([\w-]+)", desk.text)
    request = Request(f"{address}api/records", headers={"Authorization": f"Bearer {token}"})  # noqa: S310
    with urlopen(request, timeout=60) as answer:  # noqa: S310
        return {record["kind"] for record in json.loads(answer.read())["records"]}


def test_a_run_is_shown_on_a_page_and_recorded_in_the_project_without_a_restart(desk: Desk) -> None:
    desk.order("guest")
    desk.start("pizzeria.py", "-f", "order.yaml", "--record", "run.jsonl", "--ui").until(RUNS)
    assert {"DriverServing", "DriverLogged", "CallEnded"} <= kinds_on_page(desk)
    desk.edit("gouda", "brie")
    desk.until(SERVES)
    assert desk.end() == 0

    records = [json.loads(line) for line in (desk.project / "run.jsonl").read_text().splitlines()]
    assert (records[0]["kind"], records[0]["title"]) == ("RecordingStarted", "dra.pizza")
    starts = [record["why"] for record in records if record["kind"] == "DriverStarting"]
    assert starts == ["start", "pizzeria.py"]
    command = [sys.executable, "-P", "-m", "dra_kit", "replay", "run.jsonl"]
    played = subprocess.run(command, cwd=desk.project, capture_output=True, text=True, check=True)
    assert played.stderr == ""
    for told in (SERVES, RUNS):
        assert told in played.stdout
