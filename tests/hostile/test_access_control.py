"""Access control of the sandbox: web pages, other users, planted files, kill -9, control sequences in text."""

from __future__ import annotations

import asyncio
import json
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from dra_kit.apiserver.server import ApiServer
from dra_kit.client.api import Client
from dra_kit.client.credentials import Credentials
from dra_kit.client.resources import PODS
from dra_kit.sandbox.cluster import Sandbox, SandboxSettings
from dra_kit.sandbox.containers.processes import MARK_VARIABLE
from dra_kit.sandbox.drivers.sandbox_driver import SandboxDriver
from tests.hostile.browser import visit
from tests.hostile.ledger import Ledger, peak_mebibytes
from tests.support.browser import browsing, chromium
from tests.support.processes import children_of, processes
from tests.unit.cli.cluster.saved import CLASS, claim
from tests.unit.cli.kitchen import Kitchen, pod
from tests.unit.sandbox.test_sandbox import Settings, new_driver

PART = "sandbox access control"
OTHER_UID = 65534
ANY_CERTIFICATE = "--ignore-certificate-errors"
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="other users are not tested: needs root")


@pytest.fixture
def kitchen() -> Iterator[Kitchen]:
    """A driver in a world-readable folder: only the sandbox itself denies access to others."""
    with tempfile.TemporaryDirectory(prefix="k-", dir="/tmp") as directory:
        found = Kitchen(Path(directory))
        for path in (found.directory, found.directory / "t", found.directory / "run"):
            path.chmod(0o755)
        try:
            yield found
        finally:
            if list(found.directory.glob("run/*/*.json")):  # the test has failed
                subprocess.run(found.command("down", "--all"), env=found.environment, capture_output=True, check=False)


async def pods_of(server: ApiServer) -> list[str]:
    async with Client(Credentials(server.connection()), user_agent="tests/1") as client:
        return [item["metadata"]["name"] for item in (await client.list(PODS)).items]


# --- a web page in the owner's browser


async def test_a_page_of_an_allowed_origin_can_create_pods() -> None:
    """The attack works without access control; otherwise the test would prove nothing."""
    async with ApiServer() as server:
        await visit(server.url)

        assert await pods_of(server) == ["planted"]


async def test_a_web_page_can_neither_create_nor_read_nor_delete(ledger: Ledger) -> None:
    chromium()
    driver = SandboxDriver((new_driver(),), lambda _: Settings())
    async with Sandbox(driver, SandboxSettings(webhook=False, controller=False)) as sandbox:
        server, refused = sandbox.control_plane.server, sandbox.control_plane.door.refused

        with ledger.attack("a web page, to a certificate that the browser does not trust"):
            seen = await visit(server.url)
            assert await pods_of(server) == []
            assert not refused.total()  # the requests did not get this far

        for name in ("127.0.0.1", "localhost"):
            with ledger.attack(f"a web page that asks {name} and ignores the certificate") as case:
                refused.clear()
                seen = await visit(server.url.replace("127.0.0.1", name), ANY_CERTIFICATE)
                assert await pods_of(server) == []
                # all requests arrived and were rejected: blob, text, YAML, JSON's preflight, read, delete, …
                assert refused["origin"] >= 8, (refused, seen)
                assert refused["token"] >= 2, (refused, seen)  # images and scripts send no origin
                assert {seen[one] for one in ("image", "script", "socket", "events")} == {"failed"}
                assert seen["read"] == "failed: TypeError"
                case.took(peak_mebibytes(os.getpid()))

        with ledger.attack("a page whose name its DNS server has moved to the sandbox"):
            refused.clear()
            flags = (ANY_CERTIFICATE, "--host-resolver-rules=MAP evil.example 127.0.0.1")
            url = server.url.replace("127.0.0.1", "evil.example")
            async with browsing(f"{url}/api/v1/pods", flags), asyncio.timeout(60):
                while not refused["host"]:  # noqa: ASYNC110 - a counter sets no event
                    await asyncio.sleep(0.02)


# --- idle connections


@contextmanager
def files_limited_to(number: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (number, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


HOLD = """
import resource, socket, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (4000, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
held = []
for number in range(3000):
    try:
        held.append(socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=60))
    except OSError as error:
        print(error, file=sys.stderr)
print(len(held), flush=True)
sys.stdin.read()
"""


async def test_three_thousand_idle_connections_block_no_client(ledger: Ledger) -> None:
    driver = SandboxDriver((new_driver(),), lambda _: Settings())
    with files_limited_to(1024):
        async with Sandbox(driver, SandboxSettings(webhook=False, controller=False)) as sandbox:
            server = sandbox.control_plane.server
            holder = await asyncio.create_subprocess_exec(
                sys.executable, "-c", HOLD, str(server.port), stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
            assert holder.stdout is not None
            assert int(await holder.stdout.readline()) == 3000
            with ledger.attack("3,000 connections that send nothing") as case:
                for connection in (server.connection(), replace(server.connection(), socket=None)):
                    async with Client(Credentials(connection), user_agent="tests/1") as client:
                        assert (await client.list(PODS)).items == []
                assert server.open_connections < 1024 // 2
                with tempfile.TemporaryFile():  # file descriptors are left
                    case.took(peak_mebibytes(os.getpid()))
            holder.kill()
            await holder.wait()


# --- another user of the machine

SNOOP = """
import glob, json, os, socket, ssl, sys, urllib.error, urllib.request
files, sockets, url, processes, open_file = json.loads(sys.argv[1])
got, refused = [], 0
def attempt(name, what):
    global refused
    try:
        what()
    except (OSError, urllib.error.URLError):
        refused += 1
    else:
        got.append(name)
def ask(path, method="GET", data=None, **headers):
    request = urllib.request.Request(url + path, data, headers, method=method)
    urllib.request.urlopen(request, context=ssl._create_unverified_context(), timeout=30).read()
def connect(path):
    for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET):
        with socket.socket(socket.AF_UNIX, kind) as found:
            found.connect(path)
open(open_file).read()
ask("/livez")
for path in files:
    attempt("list " + path, lambda: os.listdir(path) if os.path.isdir(path) else open(path).read())
    attempt("change " + path, lambda: os.rename(path, path + ".moved"))
    attempt("link " + path, lambda: os.symlink("/etc/passwd", path + "/link"))
for path in sockets:
    attempt("connect to " + path, lambda: connect(path))
for process in processes:
    attempt("environ of " + process, lambda: open("/proc/" + process + "/environ").read())
    attempt("kill " + process, lambda: os.kill(int(process), 9))
pod = json.dumps({"metadata": {"name": "planted"}, "spec": {"containers": [{"name": "a", "image": "a"}]}}).encode()
for token in (None, "", "admin", "any"):
    headers = {} if token is None else {"Authorization": "Bearer " + token}
    for path in ("/api", "/version", "/api/v1/pods", "/api/v1/secrets", "/openapi/v3", "/metrics"):
        attempt(path, lambda: ask(path, **headers))
    headers["Content-Type"] = "application/json"
    attempt("POST", lambda: ask("/api/v1/namespaces/default/pods", "POST", pod, **headers))
    headers["Impersonate-User"] = "system:admin"
    attempt("impersonate", lambda: ask("/api/v1/pods", **headers))
print(json.dumps({"got": got, "refused": refused, "uid": os.getuid()}))
"""


@root_only
def test_another_user_can_read_and_connect_to_nothing(kitchen: Kitchen, ledger: Ledger) -> None:
    kitchen.order(pod("guest", "sleep", kitchen.nap))
    (kitchen.directory / "open").write_text("everybody may read this")
    text = kitchen.run(
        "./pizzeria.py", "-f", "order.yaml", "--no-webhook", "--detach", "--kubeconfig", str(kitchen.directory / "kube")
    )
    log = next(Path(line.split()[-1]) for line in text.splitlines() if "tail -f" in line)
    [directory] = (kitchen.directory / "t").iterdir()
    sandbox = json.loads(log.with_suffix(".json").read_text())["pid"]
    url = yaml.safe_load((kitchen.directory / "kube").read_text())["clusters"][0]["cluster"]["server"]
    wait_for(lambda: len(list(directory.rglob("*.sock"))) >= 2 and reapers(sandbox))
    sockets = [str(path) for path in directory.rglob("*") if path.is_socket()]
    files = [log, log.with_suffix(".json"), log.parent, directory, directory / ".dra-kit-sandbox",
             directory / "node-1", kitchen.directory / "kube"]  # fmt: skip
    processes = [str(sandbox), *map(str, reapers(sandbox))]

    with ledger.attack("another user: kubeconfig, log, directories, sockets, processes, API without the token") as case:
        reported = json.dumps([list(map(str, files)), sockets, url, processes, str(kitchen.directory / "open")])
        done = subprocess.run(
            ["/usr/bin/env", "python3", "-I", "-c", SNOOP, reported], user=OTHER_UID, group=OTHER_UID, extra_groups=[],
            capture_output=True, text=True, check=True, timeout=100,
        )  # fmt: skip
        found = json.loads(done.stdout)
        assert found == {"got": [], "refused": found["refused"], "uid": OTHER_UID}
        assert found["refused"] >= 3 * len(files) + len(sockets) + 2 * len(processes) + 32
        case.took(peak_mebibytes(sandbox))

    inside = {path for path in files if path.parent == directory}
    assert {path.stat().st_mode & 0o077 for path in set(files) - inside} == {0}
    kitchen.run("down")
    assert kitchen.left_behind() == []


# --- files and links planted by others where the sandbox writes


def test_planted_files_and_links_are_neither_followed_nor_removed(kitchen: Kitchen, ledger: Ledger) -> None:
    temporary, runtime = kitchen.directory / "t", kitchen.directory / "run"
    mine = kitchen.directory / "mine"
    mine.mkdir(0o700)
    victims = [mine / "thesis", mine / "notes.json", mine / "notes.log"]
    for name, files in {
        "dra-mywork": {"lock": "", "thesis": "years"},
        "dra-abcd1234": {".dra-kit-sandbox": '{"sandbox": "dra-else", "mark": "0"}', "lock": ""},
    }.items():
        (temporary / name).mkdir(0o700)
        for file, text in files.items():
            (temporary / name / file).write_text(text)
            victims.append(temporary / name / file)
    (temporary / "dra-linked12").symlink_to(mine)
    victims[0].write_text("years of work")
    reported = {"pid": 1, "began": "1", "driver": "a", "kubeconfig": str(victims[0]), "log": str(victims[0])}
    victims[1].write_text(json.dumps(reported))
    victims[2].touch()

    def untouched() -> bool:
        return all(path.exists() for path in victims) and victims[0].read_text() == "years of work"

    with ledger.attack("TMPDIR: directories called like a sandbox's, and links to others"):
        kitchen.run("./pizzeria.py", "--no-webhook", "--detach")
        assert untouched()

    state = runtime / f"dra-kit-sandbox-{os.getuid()}"
    with ledger.attack("XDG_RUNTIME_DIR: foreign files, links, and files that name others"):
        (state / "notes.json").symlink_to(victims[1])
        (state / "foreign.json").write_text(victims[1].read_text())
        (state / "list.json").write_text("[]")
        kitchen.run("down")
        assert untouched()
        assert {path.name for path in state.iterdir()} == {"notes.json", "foreign.json", "list.json"}

    with ledger.attack("XDG_RUNTIME_DIR: the whole state directory is a link"):
        state.rename(runtime / "moved")
        state.symlink_to(mine)
        assert "is not yours alone" in kitchen.run("down", code=2)
        assert "is not yours alone" in kitchen.run("./pizzeria.py", "--no-webhook", "--detach", code=2)
        assert untouched()
        assert len(list(mine.iterdir())) == 3

    for option in ("--kubeconfig", "--report"):
        with ledger.attack(f"{option}: a link to another file"):
            (kitchen.directory / "planted").symlink_to(victims[0])
            kitchen.run("./pizzeria.py", option, "planted", code=2)
            assert untouched()
            (kitchen.directory / "planted").unlink()


@root_only
def test_directories_and_records_of_another_user_are_not_trusted(kitchen: Kitchen, ledger: Ledger) -> None:
    temporary, runtime = kitchen.directory / "t", kitchen.directory / "run"
    bystander = subprocess.Popen(["/bin/sleep", "1000"], env={MARK_VARIABLE: "0" * 32})
    try:
        with ledger.attack("TMPDIR: a directory that another user has signed, with a mark of our process"):
            planted = temporary / "dra-abcd1234"
            planted.mkdir(0o700)
            (planted / ".dra-kit-sandbox").write_text(json.dumps({"sandbox": planted.name, "mark": "0" * 32}))
            (planted / ".dra-kit-sandbox").chmod(0o600)
            for path in (planted / ".dra-kit-sandbox", planted):
                os.chown(path, OTHER_UID, OTHER_UID)
            kitchen.run("down", code=2)
            assert planted.exists()
            assert bystander.poll() is None
        with ledger.attack("XDG_RUNTIME_DIR: word of a sandbox that another user has left, naming our process"):
            state = runtime / f"dra-kit-sandbox-{os.getuid()}" / "1.json"
            began = Path(f"/proc/{bystander.pid}/stat").read_text().rpartition(")")[2].split()[19]
            state.write_text(json.dumps({"pid": bystander.pid, "began": began, "driver": "a", "kubeconfig": "b"}))
            state.chmod(0o600)
            os.chown(state, OTHER_UID, OTHER_UID)
            assert "no sandbox is running in the background" in kitchen.run("down", "--all", code=2)
            assert bystander.poll() is None
            assert state.exists()
    finally:
        bystander.kill()
        bystander.wait()


# --- kill -9 of the sandbox and of its reaper

ESCAPING = (
    "setsid sleep {nap} & (cd / && nohup sleep {nap} >/dev/null 2>&1 &) ; "
    "setsid bash -c 'exec -a renamed sleep {nap}' & exec sleep {nap}"
)


@pytest.mark.parametrize("next_one", ["start", "down"])
def test_no_process_outlives_a_killed_sandbox_and_reaper(kitchen: Kitchen, ledger: Ledger, next_one: str) -> None:
    kitchen.order(pod("guest", "bash", "-c", ESCAPING.format(nap=kitchen.nap)))
    kitchen.run("./pizzeria.py", "-f", "order.yaml", "--no-webhook", "--detach")
    [state] = (kitchen.directory / "run").glob("*/*.json")
    sandbox = json.loads(state.read_text())["pid"]
    wait_for(lambda: len(asleep(kitchen.nap)) == 4)

    with ledger.attack(f"kill -9 of the sandbox and of its reaper, then {next_one}"):
        for process in [*reapers(sandbox), sandbox]:
            os.kill(process, signal.SIGKILL)
        wait_for(lambda: len(asleep(kitchen.nap)) == 3)  # the main process: the kernel has killed it
        if next_one == "start":
            kitchen.run("./pizzeria.py", "--no-webhook", "--detach")
        else:
            assert re.search(r"terminated \d+ process(es)? of killed sandboxes", kitchen.run("down", code=2))
        assert asleep(kitchen.nap) == []
        assert len(kitchen.left_behind()) == (1 if next_one == "start" else 0)

    if next_one == "start":
        kitchen.run("down")
    assert kitchen.left_behind() == []
    assert not list((kitchen.directory / "run").glob("*/*"))


# --- control sequences in text

TITLE, CLEAR, UP, C1, BIDI = "\x1b]0;owned\x07", "\x1b[2J", "\x1b[A\r", "\x9b31m", "\u202e"
HOSTILE = f"{TITLE}{CLEAR}{UP}  0.00 s all pods succeeded{C1}{BIDI}"


def only_letters(text: str) -> bool:
    return all(char.isprintable() or char == "\n" for char in text)


def test_no_output_contains_control_sequences(kitchen: Kitchen, ledger: Ledger) -> None:
    attribute = 'attributes={"dough": HOSTILE[:60]}'
    kitchen.driver(
        discover=f"HOSTILE = {HOSTILE!r}; yield [dra.Device(name=f'pizza-{{i}}', {attribute}) for i in range(2)]",
        prepare=f"raise dra.PermanentError({HOSTILE!r})",
    )
    kitchen.order(pod("guest", "true"))
    with ledger.attack("attributes and errors of a driver, in the sandbox's view and at its end"):
        text = kitchen.run_in_vain("./pizzeria.py", "-f", "order.yaml", "--no-webhook", seconds=2, tells=["owned"])
        assert only_letters(text)
        assert text.count(r"\x1b]0;owned\x07\x1b[2J") >= 2

    kitchen.driver()
    octal = "".join(f"\\{byte:03o}" for byte in HOSTILE.encode())
    kitchen.order(pod("guest", "sh", "-c", f"printf '{octal}\\n'"))
    with ledger.attack("what a container prints, in the sandbox's view"):
        text = kitchen.run("./pizzeria.py", "-f", "order.yaml", "--log-level", "debug")
        assert only_letters(text)
        assert r"| \x1b]0;owned\x07\x1b[2J\x1b[A\r  0.00 s all pods" in text

    saved = kitchen.directory / "saved"
    saved.mkdir()
    lunch = claim("lunch", f'device.driver == "{HOSTILE}"')
    device_class = {**CLASS, "spec": {}}
    slices = {
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "s", "uid": "3"},
        "spec": {"driver": "dra.pizza", "nodeName": "node-1", "devices": [{"name": f"pizza{HOSTILE}"}],
                 "pool": {"name": f"p{HOSTILE}", "generation": 1, "resourceSliceCount": 1}},
    }  # fmt: skip
    (saved / "objects.json").write_text(
        json.dumps({"apiVersion": "v1", "kind": "List", "items": [lunch, device_class, slices]})
    )
    for style in ("text", "json"):
        with ledger.attack(f"names and selectors, in dra-kit explain -o {style}"):
            text = command(kitchen, "explain", "claim", "lunch", "--from", str(saved), "-o", style)
            assert only_letters(text)
            assert "owned" in text
    for style in ("text", "github"):
        with ledger.attack(f"a manifest, in dra-kit lint --format {style}"):
            text = command(kitchen, "lint", str(saved), "--format", style)
            assert only_letters(text.replace("\t", " "))
            assert "owned" in text


def command(kitchen: Kitchen, *arguments: str) -> str:
    """Return the output of ``dra-kit``."""
    done = subprocess.run(
        [str(Path(sys.executable).with_name("dra-kit")), *arguments],
        env=kitchen.environment, capture_output=True, check=False, timeout=100,
    )  # fmt: skip
    return (done.stdout + done.stderr).decode()


def reapers(sandbox: int) -> list[int]:
    """Return the reapers that a sandbox has started."""
    return [child.pid for child in children_of(sandbox).values() if "reaper" in child.command_line]


def asleep(nap: str) -> list[int]:
    """Return the processes that sleep for that many seconds, by their arguments."""
    return [process.pid for process in processes() if process.command[1:2] == (nap,) and process.state != "Z"]


def wait_for(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)
