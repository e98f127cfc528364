"""Files that attack their reader: read by every tool, and sent as bodies to the API server."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import io
import json
import os
import socket
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from dra_kit.kubernetes.resource.schema.protobuf import pack
from tests.hostile.ledger import Ledger, peak_mebibytes
from tests.hostile.victim import DRA_KIT, Outcome, dra_kit, run
from tests.unit.cli.cluster.saved import KITCHEN, claim, pod, save

PART = "files"
LIMIT = 60
"""Seconds for tests that take two on an idle machine; it detects endless ones."""

MEBIBYTES = 300
MIB = 1 << 20

BOMBS: dict[str, bytes] = {
    "25,000 brackets": b"[" * 25_000,
    "brackets of YAML": b"a: " + b"[" * (4 * MIB),
    "braces of JSON": b'{"a":' * 25_000,
    "dashes": b"- " * MIB,
    "nested block": "\n".join(f"{' ' * depth}a:" for depth in range(3_000)).encode(),
    "aliases": b"a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
    + b"".join(b"a%d: &a%d [%s]\n" % (n, n, b", ".join([b"*a%d" % (n - 1)] * 10)) for n in range(1, 10)),
    "aliases of a long text": b"a: &a " + b"x" * MIB + b"\nb: [" + b"*a, " * 10_000 + b"]\n",
    "aliases of themselves": b"a: &a [*a]\n",
    "merges": b"a: &a {" + b"".join(b"k%d: 1, " % n for n in range(2_000)) + b"}\nb:\n" + b"- {<<: *a}\n" * 5_000,
    "values of YAML": b"a: [" + b"[]," * (2 * MIB) + b"]",
    "values of JSON": b'{"a": [' + b"[]," * (2 * MIB) + b"0]}",
    "directives": b"".join(b"%%TAG !a%d! x\n" % n for n in range(200_000)),
    "documents": b"---\n" * (2 * MIB),
    "a number": b'{"a": ' + b"9" * MIB + b"e99999}",
    "too large": b"#" * (17 * MIB),
    "no UTF-8": b"a: \xff\xfe\n",
    "zeros": bytes(MIB),
    "a Python object": b"!!python/object/apply:os.system [touch owned]\n",
}

FEW = ("25,000 brackets", "aliases", "values of YAML", "too large")


def check_outcome(case: Any, outcome: Outcome, code: int) -> None:
    """Check the exit code and the memory, and that no traceback is printed."""
    case.took(outcome.mebibytes)
    assert outcome.code == code, outcome.stderr[-2_000:]
    assert "Traceback" not in outcome.stderr
    assert outcome.mebibytes < MEBIBYTES


def one_line(outcome: Outcome, name: str) -> None:
    (line,) = outcome.stderr.strip().splitlines()
    assert line.startswith("error: ")
    assert name in line
    assert len(line) < 1_000


def check_rejected(ledger: Ledger, attack: str, name: str, *arguments: str | Path, **options: Any) -> Outcome:
    """Run a command, and check that it rejects a file in one line with its name."""
    with ledger.attack(attack) as case:
        outcome = dra_kit(*arguments, limit=LIMIT, **options)
        check_outcome(case, outcome, 2)
        one_line(outcome, name)
    return outcome


@pytest.fixture
def kitchen(tmp_path: Path) -> Path:
    return save(tmp_path / "kitchen.yaml", *KITCHEN)


@pytest.mark.parametrize("bomb", BOMBS)
def test_lint_survives_attacks(bomb: str, tmp_path: Path, ledger: Ledger) -> None:
    file = tmp_path / "bomb.yaml"
    file.write_bytes(BOMBS[bomb])
    with ledger.attack(f"lint: {bomb}") as case:
        outcome = dra_kit("lint", file, directory=tmp_path, limit=LIMIT)
        unusable = outcome.code == 2
        if unusable:
            one_line(outcome, "bomb.yaml")
        check_outcome(case, outcome, 2 if unusable else 0 if bomb == "a Python object" else 1)
        assert len(outcome.stdout) < 2_000
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize(
    ("bomb", "suffix"),
    [("25,000 brackets", "json"), ("25,000 brackets", "yaml"), ("aliases", "yaml"), ("values of YAML", "yaml"),
     ("values of JSON", "json")],
)  # fmt: skip
def test_explain_survives_hostile_snapshots(bomb: str, suffix: str, tmp_path: Path, ledger: Ledger) -> None:
    file = tmp_path / f"bomb.{suffix}"
    file.write_bytes(BOMBS[bomb])
    check_rejected(ledger, f"explain --from .{suffix}: {bomb}", file.name, "explain", "claim", "lunch", "--from", file)


@pytest.mark.parametrize("bomb", FEW)
def test_explain_survives_hostile_manifests(bomb: str, kitchen: Path, tmp_path: Path, ledger: Ledger) -> None:
    file = tmp_path / "bomb.yaml"
    file.write_bytes(BOMBS[bomb])
    check_rejected(ledger, f"explain -f: {bomb}", file.name, "explain", "-f", file, "--from", kitchen)


DRIVER = """
import dra_kit as dra

class Oven(dra.DeviceProvider):
    async def discover(self):
        yield [dra.Device(name="pizza-0")]

class Waiter(dra.Preparer):
    async def prepare(self, claim, device):
        return dra.Prepared()

driver = dra.Driver("dra.pizza", provider=Oven(), preparer=Waiter())
"""


@pytest.mark.parametrize("bomb", FEW[:2])
@pytest.mark.parametrize("how", ["-f", "--story"])
def test_the_sandbox_survives_hostile_manifests(bomb: str, how: str, tmp_path: Path, ledger: Ledger) -> None:
    (tmp_path / "driver.py").write_text(DRIVER)
    story = tmp_path / "story"
    story.mkdir()
    bomb_file = story / ("expect.yaml" if how == "--story" else "order.yaml")
    bomb_file.write_bytes(BOMBS[bomb])
    with ledger.attack(f"sandbox {how}: {bomb}") as case:
        given = story if how == "--story" else bomb_file
        outcome = run([*DRA_KIT, "sandbox", "./driver.py", how, str(given)], directory=tmp_path, limit=LIMIT)
        check_outcome(case, outcome, 2)
        assert bomb_file.name in outcome.stderr


def fifo(path: Path) -> None:
    os.mkfifo(path)


def unix_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


def link(path: Path) -> None:
    path.symlink_to("/etc/hostname")


@pytest.mark.parametrize("make", [fifo, unix_socket, link])
@pytest.mark.parametrize("tool", ["lint", "explain --from", "explain -f"])
def test_entries_of_a_folder_that_are_not_regular_files_are_rejected(
    make: Callable[[Path], None], tool: str, kitchen: Path, tmp_path: Path, ledger: Ledger
) -> None:
    folder = tmp_path / "given"
    folder.mkdir()
    make(folder / "a.yaml")
    arguments: dict[str, tuple[str | Path, ...]] = {
        "lint": ("lint", folder),
        "explain --from": ("explain", "claim", "lunch", "--from", folder),
        "explain -f": ("explain", "-f", folder, "--from", kitchen),
    }
    check_rejected(ledger, f"{tool}: {make.__name__} in a folder", "a.yaml", *arguments[tool])


@pytest.mark.parametrize("name", ["/dev/zero", "/dev/tty", "fifo"])
def test_device_files_are_rejected_by_name(name: str, tmp_path: Path, ledger: Ledger) -> None:
    os.mkfifo(tmp_path / "fifo")
    check_rejected(ledger, f"lint: {name}", name, "lint", name, directory=tmp_path)


def archive(path: Path, *entries: tuple[tarfile.TarInfo, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as made:
        for entry, content in entries:
            made.addfile(entry, io.BytesIO(content))
    return path


def member(name: str, kind: bytes = tarfile.REGTYPE, size: int = 0) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.size = kind, size
    entry.linkname = "/etc/hostname" if kind in {tarfile.SYMTYPE, tarfile.LNKTYPE} else ""
    return entry


def _zeros(path: Path) -> None:
    """14 MB of an archive whose only file has 6 GB."""
    header = member("slices.json", size=6 << 30).tobuf()
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(header)
        for _ in range(64):
            file.write(bytes(MIB))


def _many_zeros(path: Path) -> None:
    """Files that each are small enough, and together are not."""
    block = gzip.compress(member("a.txt", size=32 * MIB).tobuf() + bytes(32 * MIB), compresslevel=1)
    path.write_bytes(block * 64)


def _members(path: Path) -> None:
    archive(path, *((member(f"{number}.json"), b"") for number in range(10_050)))


def _extension(path: Path) -> None:
    """A header of a long name that is longer than any name."""
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(member("a", tarfile.XHDTYPE, size=200 * MIB).tobuf(tarfile.GNU_FORMAT))
        for _ in range(200):
            file.write(b"1" * MIB)


ARCHIVES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a file of 6 GB": (_zeros, "the limit is 64 MiB"),
    "2 GB of files": (_many_zeros, "larger than 256 MiB when unpacked"),
    "10,050 files": (_members, "more than 10000 members"),
    "a header of 200 MB": (_extension, "bytes, 'a'; the limit is"),
    "a link": (lambda path: archive(path, (member("a.json", tarfile.SYMTYPE), b"")), "a link"),
    "a hard link": (lambda path: archive(path, (member("a.json", tarfile.LNKTYPE), b"")), "a link"),
    "a device": (lambda path: archive(path, (member("a.json", tarfile.CHRTYPE), b"")), "a device"),
    "a FIFO": (lambda path: archive(path, (member("a.json", tarfile.FIFOTYPE), b"")), "a FIFO"),
    "a name that leads out": (lambda path: archive(path, (member("../a.json"), b"")), "path outside of it"),
    "an absolute name": (lambda path: archive(path, (member("/etc/a.json"), b"")), "path outside of it"),
    "a broken stream": (
        lambda path: path.write_bytes(gzip.compress(member("a.json", size=MIB).tobuf() + os.urandom(MIB))[:5_000]),
        "is not an archive",
    ),
}


@pytest.mark.parametrize("name", ARCHIVES)
def test_explain_survives_hostile_archives(name: str, tmp_path: Path, ledger: Ledger) -> None:
    make, problem = ARCHIVES[name]
    path = tmp_path / "saved.tar.gz"
    make(path)
    attack = f"explain --from archive: {name}"
    outcome = check_rejected(ledger, attack, path.name, "explain", "claim", "lunch", "--from", path)
    assert problem in outcome.stderr


def test_costly_selectors_stop_an_explanation(tmp_path: Path, ledger: Ledger) -> None:
    numbers = "[1,2,3,4,5,6,7,8,9]"
    costly = f"{numbers}.all(a,{numbers}.all(b,{numbers}.all(c,{numbers}.all(d,{numbers}.all(e,a+b+c+d+e>{{}})))))"
    documents = save(
        tmp_path / "saved.yaml",
        *KITCHEN,
        claim("lunch", *(costly.format(-n) for n in range(1, 30))),
        pod("a", claim="lunch"),
    )
    with ledger.attack("explain: 29 selectors of the highest cost") as case:
        outcome = dra_kit("explain", "pod", "a", "--from", documents, "-o", "json", limit=LIMIT)
        check_outcome(case, outcome, 4)
        (explained,) = json.loads(outcome.stdout)["explanations"]
        assert explained["outcome"] == "stopped"
        assert explained["claims"][0]["claim"]["notLookedAt"]


def test_lint_of_regular_expressions_that_repeat(tmp_path: Path, ledger: Ledger) -> None:
    patterns = "".join(
        f"  - cel: {{expression: \"'{'a' * 5_000}'.matches('{'(a?){1000}' * 80}{number}')\"}}\n" for number in range(20)
    )
    (tmp_path / "class.yaml").write_text(
        "apiVersion: resource.k8s.io/v1\nkind: DeviceClass\nmetadata: {name: a}\nspec:\n  selectors:\n" + patterns
    )
    with ledger.attack("lint: 20 regular expressions of a million steps") as case:
        outcome = dra_kit("lint", "class.yaml", directory=tmp_path, limit=LIMIT)
        check_outcome(case, outcome, outcome.code)
        assert outcome.code in {0, 1}


def test_lint_of_one_long_line_is_linear(tmp_path: Path, ledger: Ledger) -> None:
    labels = ",".join(f'"-bad{n}-":"x y"' for n in range(5_000))
    text = f'{{"apiVersion":"v1","kind":"Pod","metadata":{{"name":"a","labels":{{{labels}}}}},"spec":{{{labels}}}}}'
    (tmp_path / "long.json").write_text(text)
    with ledger.attack("lint: 10,000 mistakes in one line") as case:
        outcome = dra_kit("lint", "--format", "github", "long.json", directory=tmp_path, limit=LIMIT)
        check_outcome(case, outcome, 1)
        assert outcome.stdout.count("\n") >= 5_000


SERVER = """
import json, sys, time
from dra_kit.apiserver.server import run_in_thread
with run_in_thread() as server:
    print(json.dumps(server.kubeconfig()), flush=True)
    sys.stdin.read()
"""


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[int, str, dict[str, str]]]:
    """The embedded API server in a process of its own: its id, its address, and what its requests need."""
    process = subprocess.Popen([sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    config = json.loads(process.stdout.readline())
    token = config["users"][0]["user"].get("token") if config.get("users") else None
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        yield process.pid, config["clusters"][0]["cluster"]["server"], headers
    finally:
        with contextlib.suppress(BrokenPipeError):
            process.communicate()


BODIES = {
    "brackets": b'{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"},"x":' + b"[" * 25_000,
    "balanced brackets": b'{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"},"x":'
    + b"[" * 900 + b"]" * 900 + b"}",
    "values": b'{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"},"x":[' + b"{}," * 900_000 + b"0]}",
    "no end": b'{"a":"' + b"x" * (2 * MIB),
    "too large": b" " * (4 * MIB),
    "half characters": b'{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"\\ud800"}}',
}  # fmt: skip
YAMLS = {
    name: BOMBS[name] for name in ("25,000 brackets", "aliases", "dashes", "merges", "directives", "values of YAML")
}
MANY_ENTRIES = b"\x0a\xe0\xe5\xa4\x01" + b"\x8a\x01\x00" * 900_000  # metadata with empty managedFields
PROTOBUFS = {
    "values": pack("v1", "ConfigMap", MANY_ENTRIES),
    "no end": pack("v1", "ConfigMap", MANY_ENTRIES)[:-10],
    "long field": b"k8s\x00\x12" + b"\xff" * 8 + b"\x7f",
    "long number": b"k8s\x00" + b"\xff" * (2 * MIB),
}
KINDS = {
    ("POST", "application/json"): BODIES,
    ("POST", "application/vnd.kubernetes.protobuf"): PROTOBUFS,
    ("POST", "application/yaml"): YAMLS,
    ("PATCH", "application/apply-patch+yaml"): YAMLS,
    ("PATCH", "application/merge-patch+json"): {name: BODIES[name] for name in ("brackets", "balanced brackets")},
}


@pytest.mark.parametrize(
    ("method", "content_type", "name"), [(*kind, name) for kind, bodies in KINDS.items() for name in bodies]
)
def test_the_api_server_survives_hostile_requests(
    method: str, content_type: str, name: str, server: tuple[int, str, dict[str, str]], ledger: Ledger
) -> None:
    pid, address, headers = server
    path = "/api/v1/namespaces/default/configmaps"
    body = KINDS[method, content_type][name]
    path += "/a?fieldManager=hostile" if method == "PATCH" else ""
    with ledger.attack(f"API server, {method} of {content_type}: {name}") as case:
        status = answered(method, address, path, {**headers, "Content-Type": content_type}, body)
        case.took(peak_mebibytes(pid))
        assert status in {400, 404, 413, 422}
        assert peak_mebibytes(pid) < MEBIBYTES
        # it goes on serving
        assert answered("GET", address, "/healthz", headers, b"") == 200


def answered(method: str, address: str, path: str, headers: dict[str, str], body: bytes) -> int:
    """The status of the answer."""
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=LIMIT)
    with contextlib.closing(connection):
        connection.request(method, path, body, headers)
        return connection.getresponse().status
