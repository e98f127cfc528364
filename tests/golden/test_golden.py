from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dra_kit.errors import Unsupported
from dra_kit.kubernetes.cel.program import Selector
from tests.golden import cel
from tests.golden.__main__ import main
from tests.golden.files import KINDS, cases, kind_of, read, release_of, stem
from tests.golden.pins import pinned
from tests.golden.report import Agreement

DATA = Path(__file__).parents[1] / "data" / "golden"


def first_lines(name: str, count: int) -> list[dict[str, object]]:
    return [json.loads(line) for line in (DATA / name).read_text().split("\n")[:count]]


def write_lines(path: Path, lines: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.mark.parametrize("kind", [kind.NAME for kind in KINDS if kind.NAME not in {"api", "scenarios"}])
def test_full_agreement_with_kubernetes(
    kind: str, capsys: pytest.CaptureFixture[str], record_property: Callable[[str, object], None]
) -> None:
    status = main([*map(str, pinned(f"golden/{kind}.jsonl*")), "--json"])

    outcome = json.loads(capsys.readouterr().out)[kind]
    record_property("golden", [kind, outcome["agree"], outcome["total"], 0, 0])
    assert outcome["differences"] == []
    assert outcome["agree"] == outcome["total"] >= 40
    assert status == 0


@pytest.mark.parametrize("path", pinned("golden/1.3[4-68]/*"), ids=lambda path: f"{path.parent.name}-{stem(path)}")
def test_full_agreement_with_other_releases(path: Path, record_property: Callable[[str, object], None]) -> None:
    agreement = Agreement()
    lines = read(path)

    agreement.add(str(path), cases(kind_of(path, lines[0]), lines, release_of(path)))

    record_property("golden", agreement.told(f"{release_of(path).version}/{stem(path)}"))
    assert agreement.total > 0
    assert [difference.id for difference in agreement.differences] == []


def test_different_line_is_printed_and_exits_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = first_lines("quantity.jsonl", 30)
    lines[20]["value"] = "2"
    path = write_lines(tmp_path / "quantity.jsonl", lines)

    assert main([str(path)]) == 1

    out = capsys.readouterr().out
    assert out.startswith("quantity: 29/30 agree\n")
    assert f"quantity-0020 ({path})" in out
    assert '"value": "2"' in out.split("expected:")[1].split("got:")[0]
    assert '"value": "1"' in out.split("got:")[1]


def test_rejected_input_is_difference(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line: dict[str, object] = {"id": "qop-x", "a": "one", "b": "1", "cmp": 0, "add": "2", "sub": "0"}
    path = write_lines(tmp_path / "quantity.jsonl", [line])

    assert main([str(path), "--json"]) == 1

    [difference] = json.loads(capsys.readouterr().out)["quantity"]["differences"]
    assert difference["got"]["exception"].startswith("InvalidQuantity")


def test_report_shows_first_differences_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [line | {"ok": None} for line in first_lines("quantity.jsonl", 10)]

    main([str(write_lines(tmp_path / "quantity.jsonl", lines)), "--show", "3"])

    assert capsys.readouterr().out.count("expected:") == 3


def test_kind_is_detected_by_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_lines(tmp_path / "units.txt", first_lines("quantity.jsonl", 7))

    assert main([str(path)]) == 0

    assert capsys.readouterr().out == "quantity: 7/7 agree\n"


def test_files_of_one_kind_are_summed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = first_lines("quantity.jsonl", 7)
    paths = [write_lines(tmp_path / name, lines) for name in ("a", "b")]

    main([str(path) for path in paths])

    assert capsys.readouterr().out == "quantity: 14/14 agree\n"


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("absent", None, "No such file"),
        ("empty", b"", "no lines"),
        ("text", b"# Heading\n", "line 1 is not JSON"),
        ("array", b"[]\n", "not a JSON object"),
        ("other", b'{"id": "x"}\n', "unknown kind"),
        ("quantity.jsonl", b'{"id": "x"}\n', "not of kind quantity"),
        ("cut.gz", b"\x1f\x8b\x08\x00\x00", "end-of-stream"),
        ("binary", b"\xff\xfe", "utf-8"),
    ],
)
def test_unreadable_file_exits_2_with_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, content: bytes | None, reason: str
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)

    assert main([str(path)]) == 2

    [error] = capsys.readouterr().err.splitlines()
    assert error.startswith(f"error: {path}: ")
    assert reason in error


def test_unreadable_file_does_not_hide_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_lines(tmp_path / "q", first_lines("quantity.jsonl", 3))

    assert main([str(tmp_path / "absent"), str(path)]) == 2

    assert capsys.readouterr().out == "quantity: 3/3 agree\n"


def cel_lines(expression: str, **verdict: object) -> list[dict[str, object]]:
    device = {"driver": "d", "attributes": {"x": {"int": 1}}, "capacity": {}, "allowMultipleAllocations": None}
    line = {"id": "X_1", "expr": expression, "device": 0, "result": "true", "cost": 5, "error": ""}
    return [{"meta": "verdicts of", "devices": [device]}, line | verdict]


def test_unsupported_case_is_counted_separately(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsupported(_: str, *, environment: object) -> Selector:
        raise Unsupported("the expression uses what dra-kit cannot do")

    monkeypatch.setattr(cel, "compile_selector", unsupported)
    path = write_lines(tmp_path / "cel.jsonl", cel_lines("true"))

    assert main([str(path)]) == 0

    assert capsys.readouterr().out == "cel: 0/1 agree, 1 unsupported\n"


def test_wrong_verdict_on_expression_is_difference(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "cel.jsonl", cel_lines('device.attributes["d"].x == 2'))

    assert main([str(path)]) == 1


@pytest.mark.parametrize(("cost", "status"), [(6, 0), (2_000_000, 1)])
def test_only_admission_of_cost_is_compared(tmp_path: Path, cost: int, status: int) -> None:
    path = write_lines(tmp_path / "cel.jsonl", cel_lines('device.attributes["d"].x == 1', cost=cost))

    assert main([str(path)]) == status


@pytest.mark.parametrize("kind", ["cel", "cel-derived", "cel-compile"])
def test_kind_of_expressions_is_detected_by_header(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    path = tmp_path / "expressions"
    path.write_bytes(b"\n".join(gzip.decompress((DATA / f"{kind}.jsonl.gz").read_bytes()).split(b"\n")[:20]))

    assert main([str(path)]) == 0

    assert capsys.readouterr().out.startswith(f"{kind}: ")


def test_module_runs(tmp_path: Path) -> None:
    lines = first_lines("quantity.jsonl", 3)
    lines[0]["ok"] = True
    path = write_lines(tmp_path / "q", lines)

    done = subprocess.run(
        [sys.executable, "-m", "tests.golden", str(path)],
        cwd=DATA.parents[2],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 1
    assert done.stdout.startswith("quantity: 2/3 agree\n")
