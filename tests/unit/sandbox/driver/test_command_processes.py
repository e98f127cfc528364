"""Programs that are drivers: started on each node, restarted, terminated; their logs, registration and webhooks."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from dra_kit.client.resources import CONFIG_MAPS, RESOURCE_SLICES, VALIDATING_WEBHOOK_CONFIGURATIONS
from dra_kit.errors import KubeError, SandboxError
from dra_kit.sandbox.cluster import Sandbox, SandboxObserver, SandboxSettings
from dra_kit.sandbox.drivers import command_processes
from dra_kit.sandbox.drivers.command_processes import CommandLog, read_logs
from dra_kit.sandbox.drivers.commands import CommandKind, DriverCommand, parse_commands, with_distinct_names
from dra_kit.sandbox.records import (
    CommandEnded,
    CommandNotReady,
    CommandOutput,
    CommandStarted,
    PluginConnected,
    PluginRefused,
    Record,
)
from tests.support import foreign_driver
from tests.unit.sandbox.cluster.kubelet.polling import until
from tests.unit.sandbox.cluster.test_service_webhook import SERVER

ROOT = Path(__file__).resolve().parents[4]
processes = pytest.mark.processes


def command(kind: CommandKind, *words: str, service: str = "") -> DriverCommand:
    quoted = shlex.join(words)
    [found] = parse_commands(kind, [f"{service}={quoted}" if service else quoted], directory=Path.cwd())
    return found


def python(kind: CommandKind, code: str, *words: str, service: str = "") -> DriverCommand:
    return command(kind, sys.executable, "-u", "-c", code.replace("{", "{{"), *words, service=service)


class Records(SandboxObserver):
    def __init__(self, acted: Callable[[Record], None]) -> None:
        self.all: list[Record] = []
        self._acted = acted

    @override
    def acted(self, record: Record) -> None:
        self.all.append(record)
        self._acted(record)

    def of(self, kind: type[Any]) -> list[Any]:
        return [record for record in self.all if isinstance(record, kind)]

    def written(self) -> dict[str, list[str]]:
        found = defaultdict[str, list[str]](list)
        for record in self.of(CommandOutput):
            found[record.process] += record.lines
        return dict(found)


@asynccontextmanager
async def cluster(
    *commands: DriverCommand, nodes: int = 1, acted: Callable[[Record], None] = lambda _: None
) -> AsyncIterator[tuple[Sandbox, Records]]:
    records = Records(acted)
    settings = SandboxSettings(nodes=nodes, time_scale=20, commands=tuple(with_distinct_names(commands)))
    async with Sandbox([], settings, observers=[records]) as sandbox:
        yield sandbox, records


@processes
async def test_a_driver_in_any_language_registers_on_each_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_processes, "READY_SECONDS", 100.0)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    plugin = command("plugin", sys.executable, foreign_driver.__file__)

    async with cluster(plugin, nodes=2) as (sandbox, records):
        found = sandbox.informers.objects(RESOURCE_SLICES)
        await until(lambda: {item["spec"]["nodeName"] for item in found.values()} == {"node-1", "node-2"})
        await until(lambda: {record.node for record in records.of(PluginConnected)} == {"node-1", "node-2"})
        assert not records.of(CommandNotReady)


SHOW = """
import json, os, sys, time
names = ["NODE_NAME", "KUBECONFIG", "KUBERNETES_SERVICE_HOST", "DRA_KIT_SANDBOX_STATE", "CALLER"]
token = "/var/run/secrets/kubernetes.io/serviceaccount/token"
found = {name: os.environ.get(name) for name in names}
print(json.dumps([sys.argv[1:], found, os.getcwd(), os.path.exists(token)]))
time.sleep(1000)
"""


async def shown(records: Records, process: str) -> Any:
    await until(lambda: process in records.written())
    return json.loads(records.written()[process][0])


@processes
async def test_a_program_gets_placeholders_environment_and_an_account(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_processes, "READY_SECONDS", 0.0)
    monkeypatch.setenv("DRA_KIT_SANDBOX_STATE", "of another")
    monkeypatch.setenv("CALLER", "its own")
    places = ("{node}", "{kubelet}", "{plugins}", "{registry}", "{cdi}", "{sysfs}")

    async with cluster(python("plugin", SHOW, *places), python("controller", SHOW, "{kubeconfig}")) as (
        sandbox,
        records,
    ):
        name = Path(sys.executable).name
        words, variables, folder, has_token = await shown(records, f"{name}@node-1")
        [node] = sandbox.nodes
        top = str(node.directory)
        assert words == ["node-1", top, f"{top}/plugins", f"{top}/plugins_registry", f"{top}/cdi", "/sys"]
        assert Path(f"{top}/plugins").is_dir()
        assert variables["NODE_NAME"] == "node-1"
        assert variables["KUBECONFIG"] == str(sandbox.kubeconfig)
        assert variables["KUBERNETES_SERVICE_HOST"] == "127.0.0.1"
        assert variables["CALLER"] == "its own"
        assert variables["DRA_KIT_SANDBOX_STATE"] is None
        assert folder == str(Path.cwd())
        if os.getuid() == 0:  # others may not be allowed to mount
            assert has_token
        words, variables, _, has_token = await shown(records, f"{name}-2")
        assert words == [str(sandbox.kubeconfig)]
        assert variables["NODE_NAME"] is None
        assert not has_token  # it has the kubeconfig


@processes
async def test_a_program_that_exits_is_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_processes, "READY_SECONDS", 0.0)
    code = """
import os, sys, time
name = sys.argv[1]
if os.path.exists(name): time.sleep(1000)
open(name, "w")
sys.exit(7)
"""

    async with cluster(python("plugin", code, str(tmp_path / "mark"))) as (_, records):
        await until(lambda: len(records.of(CommandStarted)) == 2)
        [ended] = records.of(CommandEnded)
        assert ended.code == 7
        assert ended.restart_after is not None
        assert [record.attempt for record in records.of(CommandStarted)] == [0, 1]


@processes
async def test_a_program_that_exits_at_once_ends_the_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_processes, "_AT_ONCE_SECONDS", 1000.0)
    with pytest.raises(SandboxError) as caught:
        async with cluster(python("plugin", "print('no oven here'); raise SystemExit(3)"), nodes=1):
            pytest.fail("the sandbox runs")

    text = str(caught.value)
    assert f"--plugin {Path(sys.executable).name} exited at once 5 times on node-1" in text
    assert "exit code 3; its last lines: no oven here; correct" in text


@processes
async def test_a_program_that_cannot_be_executed_ends_the_sandbox(tmp_path: Path) -> None:
    program = tmp_path / "oven"
    program.write_bytes(b"\x7fELF of another machine")
    program.chmod(0o755)

    with pytest.raises(SandboxError, match="exec format error"):
        async with cluster(command("controller", str(program))) as (sandbox, _):
            await sandbox.or_fail(asyncio.sleep(60))


@processes
async def test_programs_are_terminated_and_may_say_goodbye(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_processes, "READY_SECONDS", 0.0)
    code = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (print("goodbye"), sys.exit(0)))
print("hello")
while True: time.sleep(1)
"""
    async with cluster(python("plugin", code), nodes=2) as (sandbox, records):
        await until(lambda: len(records.written()) == 2)
        logs = sandbox.directory

        assert {entry.text for entries in read_logs(logs).values() for entry in entries} == {"hello"}

    assert all(lines == ["hello", "goodbye"] for lines in records.written().values())
    assert [record.code for record in records.of(CommandEnded)] == [0, 0]


@processes
async def test_a_program_that_ignores_sigterm_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_processes, "READY_SECONDS", 0.0)
    monkeypatch.setattr(command_processes, "_TERMINATION_SECONDS", 0.2)
    code = "import signal, time\nsignal.signal(15, signal.SIG_IGN)\nprint('hello')\nwhile True: time.sleep(1)"

    async with cluster(python("controller", code)) as (_, records):
        await until(records.written)

    assert [record.code for record in records.of(CommandEnded)] == [137]


@processes
async def test_a_plugin_without_a_socket_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_processes, "READY_SECONDS", 0.5)

    async with cluster(python("plugin", "import time; time.sleep(1000)")) as (sandbox, records):
        [late] = records.of(CommandNotReady)
        assert late.node == "node-1"
        assert "is not registered with the kubelet" in late.message
        [cause] = late.causes
        assert f"no registration socket in {sandbox.nodes[0].directory / 'plugins_registry'}" in cause


@processes
async def test_a_plugin_that_the_kubelet_refuses_is_reported_in_its_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_processes, "READY_SECONDS", 1000.0)

    def refused(record: Record) -> None:
        if isinstance(record, PluginRefused):
            monkeypatch.setattr(command_processes, "READY_SECONDS", 0.0)

    code = """
import os, socket, time
registry = os.environ["KUBELET_REGISTRAR_DIRECTORY_PATH"]
server = socket.socket(socket.AF_UNIX)
server.bind(registry + "/../oven.sock")
server.listen()
os.rename(registry + "/../oven.sock", registry + "/oven.sock")  # the kubelet must not find it earlier
while True: server.accept()[0].close()
"""
    async with cluster(python("plugin", code), acted=refused) as (_, records):
        [late] = records.of(CommandNotReady)
        assert any("failed to get plugin info using RPC GetInfo at socket" in cause for cause in late.causes), late


@processes
async def test_a_webhook_program_stands_for_the_service_of_a_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_processes, "READY_SECONDS", 100.0)
    code = SERVER.replace("context.load_cert_chain(sys.argv[2])", "context.load_cert_chain(*sys.argv[2:])")
    hook = python("webhook", code, "{port}", "{cert}", "{key}", service="oven")
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}
    webhook = {
        "name": "oven.example.com", "rules": [rule], "sideEffects": "None", "admissionReviewVersions": ["v1"],
        "clientConfig": {"service": {"namespace": "default", "name": "oven", "path": "/validate"}},
    }  # fmt: skip
    async with cluster(hook) as (sandbox, records):
        configuration = {"metadata": {"name": "oven"}, "webhooks": [webhook]}
        await sandbox.client.create(VALIDATING_WEBHOOK_CONFIGURATIONS, configuration)
        with pytest.raises(KubeError, match="denied the request: too hot"):
            await sandbox.client.create(CONFIG_MAPS, {"metadata": {"name": "menu"}}, "default")
        assert not records.of(CommandNotReady)


def test_a_log_file_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_processes, "_LOG_LIMIT", 1000)
    (tmp_path / "logs").mkdir()
    log = CommandLog(tmp_path / "logs" / "oven@node-1.log", lambda *_: None)
    for number in range(100):
        log.append(f"line {number:04}\n".encode(), 10**18 + number)
    log.close()

    [(process, entries)] = read_logs(tmp_path).items()
    assert process == "oven@node-1"
    assert entries[-1].text == "line 0099"
    assert 20 < len(entries) < 60
    assert sum(path.stat().st_size for path in (tmp_path / "logs").iterdir()) <= 2000


def test_a_log_shows_lines_within_a_rate_and_counts_the_others(tmp_path: Path) -> None:
    shown: list[tuple[Sequence[str], int]] = []
    log = CommandLog(tmp_path / "x.log", lambda lines, left_out: shown.append((lines, left_out)))
    log.append("".join(f"{number}\n" for number in range(1500)).encode(), 0)
    log.close()

    [(lines, left_out)] = shown
    assert lines[-1] == "1499"
    assert left_out + len(lines) == 1500
    assert left_out >= 400


def test_an_unfinished_line_is_taken_at_the_end(tmp_path: Path) -> None:
    lines: list[str] = []
    log = CommandLog(tmp_path / "x.log", lambda found, _: lines.extend(found))
    log.append(b"one\r\ntw", 0)
    log.append(b"o\nthr\xffee", 0)
    log.finish()
    log.close()

    assert lines == ["one", "two", "thr\ufffdee"]
