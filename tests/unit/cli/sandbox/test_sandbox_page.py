"""``dra-kit sandbox --ui``: the page is up before the cluster, and stays until the end."""

from __future__ import annotations

import json
import re
import signal
import socket
from urllib.request import Request, urlopen

import pytest

from tests.unit.cli.kitchen import Kitchen, pod

pytestmark = pytest.mark.processes

URL = re.compile(r"(http://127\.0\.0\.1:\d+/)#token=([\w-]+)")


def records(text: str) -> list[str]:
    """The kinds of the records that the page at a printed URL gets."""
    found = URL.search(text)
    assert found, text
    request = Request(f"{found[1]}api/records", headers={"Authorization": f"Bearer {found[2]}"})  # noqa: S310
    with urlopen(request, timeout=60) as answer:  # noqa: S310
        return [record["kind"] for record in json.loads(answer.read())["records"]]


def test_the_page_shows_a_run_which_lasts_until_it_is_interrupted(kitchen: Kitchen) -> None:
    kitchen.order(pod("guest", "sleep", kitchen.nap, restart="Always"))
    with kitchen.start("./pizzeria.py", "-f", "order.yaml", "--ui", "--log-level", "debug") as process:
        assert process.stdout is not None
        text = ""
        for line in process.stdout:
            text += line
            if "everything runs until Ctrl-C" in line:
                break
        assert {"ClusterStarted", "PluginConnected", "CallEnded", "ContainerStarted"} <= set(records(text))
        process.send_signal(signal.SIGINT)
        text += process.stdout.read()
        process.wait(60)

    assert text.index("page: http") < text.index("API server, scheduler, controllers")
    assert len(URL.findall(text)) == 1
    assert text.count(URL.findall(text)[0][1]) == 1  # the token


def test_a_sandbox_in_the_background_prints_the_page_and_does_not_log_it(kitchen: Kitchen) -> None:
    text = kitchen.run("./pizzeria.py", "--detach", "--ui")
    try:
        assert "ClusterStarted" in records(text)
        token = URL.findall(text)[0][1]
        [log] = (kitchen.directory / "run").glob("*/*.log")
        assert token not in log.read_text()
        assert token not in kitchen.call("list")
    finally:
        kitchen.call("down")


def test_a_port_in_use_is_reported(kitchen: Kitchen) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        text = kitchen.call("./pizzeria.py", "--ui-port", str(port), code=2)
    assert f"--ui-port {port}: Address already in use; use another port, or 0 for a free one" in text
