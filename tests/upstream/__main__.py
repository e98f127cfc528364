"""Run public drivers in the sandbox with their own charts and examples, or judge them by conformance checks.

``python -m tests.upstream try SOURCES --reports FOLDER``, or ``judge`` in place of ``try``: SOURCES has a checkout of
each driver, by the name of its repository, and ``images/NAME``, a folder with the files of its image, such as a
container's export. What is missing is skipped loudly. ``drivers.yaml`` says how each driver runs and what is expected.

Exit code 0: what was found did what is expected, or is judged, whatever the verdict; 1: it did not, or could not be
started; 2: nothing was found, or a name is unknown.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import msgspec
import yaml
from msgspec import Struct

from tests.upstream import hardware

HERE: Final = Path(__file__).parent
OUTCOMES: Final[Mapping[str, int]] = {"runs": 0, "waits": 1, "stays": 1, "refused": 2}
"""The exit code of each outcome: all pods are ready or have succeeded, some wait, some run without an end, an error."""
_SANDBOX_SECONDS: Final = 300.0


class Example(Struct, frozen=True, forbid_unknown_fields=True):
    """What is expected of manifests of a driver: files, values of its chart, further flags, a text that is said.

    With ``link``, it needs a network interface of this type, which not every kernel can create. Its pod waits, then,
    for the reason ``says_without``, which shows that the driver did its part.
    """

    files: tuple[str, ...]
    values: Mapping[str, Any] = {}
    flags: str = ""
    outcome: str = "runs"
    says: str = ""
    why: str = ""
    link: str = ""
    says_without: str = ""


class UpstreamDriver(Struct, frozen=True, forbid_unknown_fields=True):
    """How a driver runs; see the head of ``drivers.yaml``."""

    version: str
    sandbox: str
    examples: tuple[Example, ...]
    needs: tuple[str, ...] = ()
    hardware: str = ""
    values: Mapping[str, Any] = {}
    judge: str = ""
    repository: str = ""  # by default, the name


def load_drivers() -> dict[str, UpstreamDriver]:
    """Return the drivers that are known, by the name of their repository."""
    text = (HERE / "drivers.yaml").read_text(encoding="utf-8")
    return msgspec.convert(yaml.safe_load(text), dict[str, UpstreamDriver])


class Place:
    """Where the files of a driver are; ``scratch`` is for what is made for it."""

    def __init__(self, name: str, driver: UpstreamDriver, sources: Path, scratch: Path) -> None:
        self._sources = sources.absolute()
        self._places = {
            "sources": self._sources / (driver.repository or name),
            "image": self._sources / "images" / name,
            "images": self._sources / "images",
            "around": self._sources,
            "python": Path(sys.executable),
            "here": HERE,
            "values": scratch / "values.yaml",
            "hardware": self._sources / "hardware" / name if not driver.hardware else scratch / "hardware",
        }
        self._needs = ("{sources}", "{image}", *driver.needs)
        if driver.hardware:
            hardware.MAKERS[driver.hardware](scratch / "hardware")

    def filled(self, text: str) -> str:
        """Return a text with the paths in place of placeholders; others stay."""
        for name, path in self._places.items():
            text = text.replace(f"{{{name}}}", str(path))
        return text

    def words(self, text: str) -> list[str]:
        """Split a command, and put the paths in place of placeholders; a path may have spaces."""
        return [self.filled(word) for word in shlex.split(text)]

    @property
    def lacks(self) -> list[str]:
        """The folders that are not there."""
        return [path for path in map(self.filled, self._needs) if not Path(path).exists()]


def commands(driver: UpstreamDriver, place: Place, scratch: Path) -> Iterator[tuple[Example, list[str]]]:
    """Yield the command for each of the driver's examples."""
    for number, example in enumerate(map(on_this_kernel, driver.examples)):
        words = place.words(driver.sandbox)
        if driver.values or example.values:
            file = scratch / f"values-{number}.yaml"
            file.write_text(yaml.safe_dump({**driver.values, **example.values}), encoding="utf-8")
            words += ["--values", str(file)]  # they belong to the last chart
        if example.outcome != "runs":
            words += ["--timeout", "20"]
        words += place.words(example.flags)
        files = [place.filled(file if file.startswith("{") else f"{{sources}}/{file}") for file in example.files]
        yield example, ["sandbox", *words, *(word for file in files for word in ("-f", file))]


def on_this_kernel(example: Example) -> Example:
    """Return what is expected of an example here: it waits if this kernel has no such network interfaces."""
    if not example.link or has_link(example.link):
        return example
    why = f"this kernel has no network interfaces of type {example.link}"
    return msgspec.structs.replace(example, outcome="waits", says=example.says_without, why=why)


@cache
def has_link(kind: str) -> bool:
    """Return whether this kernel creates network interfaces of a type, in a namespace of their own."""
    words = ["unshare", "-rn", "ip", "link", "add", "probe0", "type", kind]
    try:
        return not subprocess.run(words, capture_output=True, check=False).returncode
    except OSError:
        return False


def problem(example: Example, code: int, output: str) -> str:
    """Return what is not as expected; empty if nothing."""
    if code != OUTCOMES[example.outcome]:
        return f"exit code {code}, expected {OUTCOMES[example.outcome]}: {' '.join(output.split()[-40:])}"
    return "" if example.says in output else f"{example.says!r} is not in the output"


def tried(driver: UpstreamDriver, place: Place, scratch: Path, logs: Path) -> bool:
    """Run the examples of a driver; return whether all did what is expected."""
    right = 0
    for number, (example, words) in enumerate(commands(driver, place, scratch)):
        print(f"   dra-kit {shlex.join(words)}", flush=True)
        try:
            done = subprocess.run(
                [sys.executable, "-m", "dra_kit", *words],
                capture_output=True,
                text=True,
                timeout=_SANDBOX_SECONDS,
                check=False,
            )
            code, output = done.returncode, done.stdout + done.stderr
        except subprocess.TimeoutExpired as error:
            code, output = -1, f"no end after {error.timeout:.0f} s"
        (logs / f"{scratch.name}-{number}.log").write_text(output, encoding="utf-8")
        wrong = problem(example, code, output)
        right += not wrong
        reason = f" ({example.why})" if example.why else ""
        print(f"{'FAIL' if wrong else 'ok'}   {example.outcome}{reason}{f': {wrong}' if wrong else ''}", flush=True)
    print(f"== {right} of {len(driver.examples)} as expected", flush=True)
    return right == len(driver.examples)


def judged(name: str, driver: UpstreamDriver, place: Place, scratch: Path, *, reports: Path, checks: str) -> bool:
    """Judge a driver and write the reports; return whether it could be started."""
    report, profile = reports / f"{name}.json", scratch / "profile.yaml"
    report.unlink(missing_ok=True)
    command = shlex.join(place.words(driver.judge))
    profile.write_text(place.filled((HERE / f"{name}.yaml").read_text(encoding="utf-8")), encoding="utf-8")
    (scratch / "values.yaml").write_text(yaml.safe_dump(dict(driver.values)), encoding="utf-8")
    words = ["conformance", "--command", command, "--profile", str(profile), "--only", checks]
    words += ["--json", str(report), "--html", str(reports / f"{name}.html")]
    subprocess.run([sys.executable, "-m", "dra_kit", *words], check=False)
    found = json.loads(report.read_text(encoding="utf-8")) if report.exists() else {}
    return bool(found.get("driver"))  # it has registered


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.upstream", description=__doc__)
    parser.add_argument("action", choices=["try", "judge"])
    parser.add_argument("sources", type=Path)
    parser.add_argument("--reports", type=Path, required=True, help="folder for logs or reports")
    parser.add_argument("--only", default="", help="names of drivers, with commas")
    parser.add_argument("--checks", default="", help="groups and checks to judge by, such as R,P5; default: all")
    given = parser.parse_args()
    known = {name: driver for name, driver in load_drivers().items() if given.action == "try" or driver.judge}
    names = [name for text in given.only.split(",") if (name := text.strip())] or list(known)
    if unknown := [name for name in names if name not in known]:
        parser.error(f"no driver to {given.action} is named {' or '.join(unknown)}; known are {', '.join(known)}")
    wanted = {name: driver for name, driver in known.items() if name in names}
    given.reports.mkdir(parents=True, exist_ok=True)
    results: dict[str, bool] = {}
    for name, driver in wanted.items():
        with TemporaryDirectory(prefix="dra-") as folder:
            scratch = Path(folder) / name
            scratch.mkdir()
            place = Place(name, driver, given.sources, scratch)
            print(f"== {name} ({driver.version})", flush=True)
            if lacks := place.lacks:
                print(f"SKIPPED {name}: {' and '.join(lacks)} missing", flush=True)
                continue
            if given.action == "try":
                results[name] = tried(driver, place, scratch, given.reports)
            else:
                results[name] = judged(name, driver, place, scratch, reports=given.reports, checks=given.checks)
    if not results:
        print(f"nothing to {given.action} in {given.sources}; put there: {', '.join(wanted)}", file=sys.stderr)
        return 2
    return 0 if all(results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
