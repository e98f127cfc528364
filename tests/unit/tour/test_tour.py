"""The tour in CONTRIBUTING is what really happens: every hop of it is called, in its order."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from dra_kit.apiserver.server import run_in_thread
from dra_kit.cli.app import cli
from dra_kit.client.api import Client
from dra_kit.client.credentials import load_credentials
from dra_kit.sandbox.stories.manifests import apply_files
from tests.unit.cli.cluster.saved import CHEESE, CLASS, claim, node, pod, slice_of
from tests.unit.tour.recorder import recorded, unwalked

REPOSITORY = Path(__file__).parents[3]
PIZZA = REPOSITORY / "examples" / "pizza-driver"
_HOP = re.compile(r"[a-z_]+(?:/[a-z_]+)+:[A-Za-z_.]+")


def tour() -> dict[str, list[str]]:
    """The hops of each walk by its title; a line with a title begins at the margin."""
    text = (REPOSITORY / "CONTRIBUTING.md").read_text(encoding="utf-8").split("\n## A tour\n")[1].split("```")[1]
    walks: dict[str, list[str]] = {}
    title = ""
    for line in text.splitlines():
        title = title if line.startswith(" ") or not line else line.strip()
        if hops := _HOP.findall(line):
            walks.setdefault(title, []).extend(hops)
    return walks


TOUR = tour()


def command(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(cli, [str(argument) for argument in arguments], catch_exceptions=False)
    return result.exit_code, result.output


def test_a_missing_hop_is_found() -> None:
    assert unwalked(["a", "b"], ["x", "a", "x", "b"]) == []
    assert unwalked(["a", "b", "c"], ["b", "a", "c"]) == ["b", "c"]
    titles = ["dra-kit sandbox -f FILE", "a pod, from POST to Running", "dra-kit explain pod", "dra-kit lint FILE"]
    assert list(TOUR) == titles


@pytest.mark.processes
def test_the_start_of_a_sandbox_and_a_pod_that_becomes_running(tmp_path: Path) -> None:
    start, run = TOUR["dra-kit sandbox -f FILE"], TOUR["a pod, from POST to Running"]
    order = (PIZZA / "stories" / "order-by-claim" / "order.yaml").read_text(encoding="utf-8")
    file = tmp_path / "order.yaml"
    file.write_text(order.replace("exec sleep 3600", "exec sleep 0.1"), encoding="utf-8")
    with recorded([*start, *run]) as calls:
        code, output = command("sandbox", PIZZA, "-f", file)
    assert code == 0, output
    assert "Pod guest is Succeeded" in output
    assert unwalked(start, calls) == []
    assert unwalked([*start, *run], calls) == []


async def create(kubeconfig: Path, manifests: Path) -> None:
    async with Client(await load_credentials(kubeconfig), user_agent="dra-kit/test") as client:
        await apply_files(client, [manifests])


def test_an_explanation_of_a_pod_in_a_cluster(tmp_path: Path) -> None:
    hops, kubeconfig, manifests = TOUR["dra-kit explain pod"], tmp_path / "kubeconfig", tmp_path / "cluster.yaml"
    lunch = claim("lunch", f'{CHEESE} == "gouda"')
    there = [node("node-1"), slice_of("node-1", margherita="mozzarella"), CLASS, lunch, pod("guest", claim="lunch")]
    manifests.write_text(yaml.safe_dump_all(there), encoding="utf-8")
    with run_in_thread() as server:
        kubeconfig.write_text(yaml.safe_dump(server.kubeconfig()), encoding="utf-8")
        asyncio.run(create(kubeconfig, manifests))
        with recorded(hops) as calls:
            code, output = command("explain", "pod", "guest", "--kubeconfig", kubeconfig)
    assert code == 3, output
    assert unwalked(hops, calls) == []


def test_the_check_of_a_file(tmp_path: Path) -> None:
    hops = TOUR["dra-kit lint FILE"]
    file = tmp_path / "claim.yaml"
    file.write_text(yaml.safe_dump(claim("lunch")), encoding="utf-8")
    with recorded(hops) as calls:
        code, output = command("lint", file)
    assert code == 0, output
    assert unwalked(hops, calls) == []
