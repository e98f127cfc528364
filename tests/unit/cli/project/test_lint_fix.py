"""``dra-kit lint --fix`` and ``--diff``: what is written, printed and told, and how it ends."""

from __future__ import annotations

import json
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from tests.unit.cli.project.linting import lint

BEFORE = """\
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: lunch}
spec:
  devices:
    requests:
    - name: pizza   # one
      deviceClassName: pizza
"""
AFTER = BEFORE.replace("      deviceClassName", "      exactly:\n        deviceClassName")
LEFT = f"{BEFORE}      count: 0\n"
FIXED = "fixed: unknown field deviceClassName [unknown-field]"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "claim.yaml"
    path.write_text(BEFORE)
    return path


def test_lint_without_fix_reports_fixable_errors(file: Path) -> None:
    assert lint(file, code=1).stdout.endswith("1 error in 1 object of 1 file; --fix can fix it\n")
    assert file.read_text() == BEFORE
    (finding,) = json.loads(lint(file, "--format", "json", code=1).stdout)
    assert finding["fixable"] is True


def test_fix_writes_the_file_and_reports_changes(file: Path) -> None:
    assert lint("--fix", file, code=0).stdout == f"{file}:8:7: {FIXED}\n\nno findings in 1 object of 1 file\n"
    assert file.read_text() == AFTER
    assert [path.name for path in file.parent.iterdir()] == ["claim.yaml"]


def test_what_is_left_is_reported_and_decides_the_end(file: Path) -> None:
    file.write_text(BEFORE.replace("deviceClassName", "colour: red\n      deviceClassName"))
    output = lint("--fix", file, code=1).stdout
    assert FIXED in output
    assert "error: unknown field colour" in output
    file.write_text(LEFT)
    assert "1 warning in 1 object of 1 file\n" in lint("--fix", file, code=0).stdout
    lint("--fix", "--strict", file, code=1)


def test_fix_of_stdin_prints_text_to_stdout_and_report_to_stderr() -> None:
    result = lint("--fix", "-", code=0, stdin=BEFORE)
    assert result.stdout == AFTER
    assert result.stderr == f"<stdin>:8:7: {FIXED}\n\nno findings in 1 object of 1 file\n"


def test_findings_for_programs_stand_alone_on_standard_output(file: Path) -> None:
    result = lint("--fix", "--format", "json", file, code=0)
    assert json.loads(result.stdout) == []
    assert FIXED in result.stderr


@pytest.mark.skipif(shutil.which("patch") is None, reason="the program patch is not installed")
def test_a_diff_shows_what_would_be_written_and_ends_as_the_check(file: Path, tmp_path: Path) -> None:
    file.write_text(BEFORE.removesuffix("\n"))
    for arguments in (["--diff"], ["--fix", "--diff"]):
        result = lint(*arguments, file, code=1)
        assert file.read_text() == BEFORE.removesuffix("\n")
        assert result.stderr == "1 error in 1 object of 1 file; --fix can fix it\n"
        command = ["patch", "-o", str(tmp_path / "patched"), str(file)]
        subprocess.run(command, input=result.stdout, text=True, capture_output=True, check=True)
        assert (tmp_path / "patched").read_text() == AFTER.removesuffix("\n")


def test_a_diff_is_for_people(file: Path) -> None:
    assert "--diff cannot be combined with --format json" in lint("--diff", "--format", "json", file, code=2).stderr


def test_mode_byte_order_mark_and_ends_of_lines_stay(file: Path) -> None:
    file.write_bytes(b"\xef\xbb\xbf" + BEFORE.replace("\n", "\r\n").encode())
    file.chmod(0o640)
    lint("--fix", file, code=0)
    assert file.read_bytes() == b"\xef\xbb\xbf" + AFTER.replace("\n", "\r\n").encode()
    assert stat.S_IMODE(file.stat().st_mode) == 0o640


def test_fix_follows_a_symlink_once_and_keeps_it(file: Path) -> None:
    link = file.with_name("link.yaml")
    link.symlink_to(file.name)
    lint("--fix", link, file, file.parent, code=0)
    assert link.is_symlink()
    assert file.read_text() == AFTER


def test_fix_does_not_write_unchanged_files(file: Path) -> None:
    file.write_text(AFTER)
    before = file.stat()
    lint("--fix", file, code=0)
    assert (file.stat().st_ino, file.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_a_file_that_must_not_be_written_is_refused_before_any_is(file: Path) -> None:
    other = file.with_name("other.yaml")
    other.write_text(BEFORE)
    other.chmod(0o444)
    result = lint("--fix", file, other, code=2)
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"error: {other} cannot be written: it is read-only; no file was changed; make it writable")
    assert file.read_text() == other.read_text() == BEFORE
    lint("--diff", other, code=1)
    other.chmod(0o644)
    other.write_text(AFTER)
    other.chmod(0o444)
    lint("--fix", file, other, code=0)


def test_fix_skips_helm_templates_with_a_warning(file: Path) -> None:
    template = file.with_name("template.yaml")
    template.write_text(BEFORE.replace("pizza\n", "'{{ .Values.class }}'\n"))
    before = template.read_text()
    result = lint("--fix", file.parent, code=1)
    assert template.read_text() == before
    assert result.stderr == f"warning: {template} is unchanged: it contains {{{{, so it is a Helm template\n"
    assert file.read_text() == AFTER


def test_fix_corrects_names_against_devices_of_the_driver(file: Path) -> None:
    file.with_name("driver.py").write_text(
        "import dra_kit as dra\n"
        "class Oven(dra.DeviceProvider):\n"
        "    def discover(self): yield [dra.Device(name='p', attributes={'dough': 'pan'})]\n"
        "class Waiter(dra.Preparer):\n"
        "    def prepare(self, claim, device): return dra.Prepared()\n"
        "driver = dra.Driver('dra.pizza', provider=Oven(), preparer=Waiter())\n"
    )
    text = 'device.driver == "dra.pizza" && device.attributes["dra.pizza"].{} == "pan"'
    head = "apiVersion: resource.k8s.io/v1\nkind: DeviceClass\nmetadata: {name: pizza}\nspec:\n  selectors:\n"
    file.write_text(f"{head}  - cel:\n      expression: {text.format('duogh')}\n")
    lint("--fix", file, "--driver", file.with_name("driver.py"), code=0)
    assert file.read_text() == f"{head}  - cel:\n      expression: {text.format('dough')}\n"
