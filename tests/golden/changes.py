"""Which recorded lines prove the differences between releases.

A line proves a difference if it agrees, and does not once the rule is that of the other release.

``python -m tests.golden.changes`` checks the proofs in ``changes.toml``. With ``--find``, it looks for proofs of the
differences that have none, and adds them. With ``--write``, it writes the table of the page :data:`PAGE`.
"""

from __future__ import annotations

import argparse
import multiprocessing
import re
import sys
import tomllib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, Final

from dra_kit.kubernetes import release as releases
from dra_kit.kubernetes.release import DEFAULT, GATES, NEWEST, OLDEST, Change, KubernetesVersion, Release
from tests.golden.files import cases, kind_of, read, release_of
from tests.golden.kind import Case
from tests.golden.pins import DATA, PINS

TABLE: Final = Path(__file__).with_suffix(".toml")
PAGE: Final = Path(__file__).parents[2] / "docs" / "reference" / "kubernetes-differences.md"
_ENOUGH: Final = 2
"""Proofs of a difference."""
_TRIED: Final = 40
"""Lines that ask for a rule and are tried with the other rule."""
_BEGIN: Final = "<!-- python -m tests.golden.changes --write -->\n\n"
_HEAD: Final = """# Proofs of the differences between releases: python -m tests.golden.changes

"""


def differences() -> dict[str, tuple[KubernetesVersion, str]]:
    """Return the first release and the sentence of each difference by its name: changed rules, then feature gates."""
    source = Path(releases.__file__).read_text(encoding="utf-8")
    sentences = dict(re.findall(r'^    ([A-Z_0-9]+) = auto\(\)\n    """(.*?)"""', source, re.MULTILINE | re.DOTALL))
    found = {change.name: (_since(change), " ".join(sentences[change.name].split())) for change in Change}
    for name, gate in GATES.items():
        if gate.on is not None and gate.on > OLDEST.minor:
            found[name] = KubernetesVersion(1, gate.on), "The feature gate is on by default."
    return found


def _since(change: Change) -> KubernetesVersion:
    return next(version for minor in range(NEWEST.minor + 1) if (version := KubernetesVersion(1, minor)).has(change))


def table() -> dict[str, list[str]]:
    """Return the recorded lines that prove each difference, as ``file#id``."""
    found: dict[str, list[str]] = tomllib.loads(TABLE.read_text(encoding="utf-8"))["proofs"]
    return found


def flip(name: str) -> None:
    """Let this process take a rule or gate to be as it is on the other side of the difference."""
    if name in GATES:
        former = Release.of

        def of(version: KubernetesVersion = DEFAULT) -> Release:
            release = former(version)
            return release.without(name) if name in release else release.also(name, *GATES[name].needs)

        Release.of = of  # type: ignore[method-assign]
        return
    genuine, flipped = KubernetesVersion.has, Change[name]

    def has(version: KubernetesVersion, change: Change) -> bool:
        return genuine(version, change) != (change is flipped)

    setattr(KubernetesVersion, "has", has)  # noqa: B010 - for the types


def _named_cases(file: str, ids: Sequence[str] = ()) -> Iterator[tuple[str, Case]]:
    """Yield the cases of a file, or of some of its lines, by ``file#id``."""
    path = DATA / file
    lines = read(path)
    kind, release = kind_of(path, lines[0]), release_of(path)
    some = [line for line in lines if not ids or line.get("id", "") in {"", *ids}]  # what others need has no id
    for case in cases(kind, some, release):
        yield f"{file}#{case.id.removesuffix(f' ({release.version})')}", case


def _agrees(case: Case) -> bool:
    try:
        return case.observe() == case.expected
    except Exception:  # noqa: BLE001 - with a rule of another release, anything may happen
        return False


def verdicts(proofs: Sequence[str], flipped: str = "") -> dict[str, bool]:
    """Return whether each line agrees, with a difference flipped if one is named; for a process of its own."""
    if flipped:
        flip(flipped)
    by_file: dict[str, list[str]] = {}
    for proof in proofs:
        file, _, line = proof.partition("#")
        by_file.setdefault(file, []).append(line)
    return {name: _agrees(case) for file, ids in by_file.items() for name, case in _named_cases(file, ids)}


def asked() -> dict[str, list[str]]:
    """Return the lines that agree and ask for each rule or gate; for a process of its own."""
    noted: set[str] = set()
    has, contains = KubernetesVersion.has, Release.__contains__

    def noting_has(version: KubernetesVersion, change: Change) -> bool:
        noted.add(change.name)
        return has(version, change)

    def noting_contains(release: Release, name: str) -> bool:
        noted.add(name)
        return contains(release, name)

    setattr(KubernetesVersion, "has", noting_has)  # noqa: B010 - for the types
    setattr(Release, "__contains__", noting_contains)  # noqa: B010 - likewise
    found: dict[str, list[str]] = {}
    for file in _files():
        for line, case in _named_cases(file):
            noted.clear()
            if _agrees(case):
                for name in noted:
                    found.setdefault(name, []).append(line)
    return found


def find(name: str, lines: Sequence[str]) -> list[str]:
    """Return which of some lines prove a difference, at most as many as are enough."""
    since = differences()[name][0]
    some = [line for line in lines if (release_of(DATA / line.partition("#")[0]).version < since) != (since == NEWEST)]
    spread = some[:: max(1, len(some) // _TRIED)][:_TRIED]
    flipped = in_process(verdicts, spread, name) if spread else {}
    return [line for line in spread if not flipped.get(line, True)][:_ENOUGH]


def _files() -> list[str]:
    """Return the files of releases."""
    return [name for name in PINS if re.match(r"golden/1\.\d+/", name) and not re.search("traces|/C-watches", name)]


def in_process(work: Callable[..., Any], *arguments: object) -> Any:
    """Return what a function returns in a new process, where nothing is cached and what it flips is flipped only there.

    No line may have been replayed in this process before.
    """
    with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as pool:
        return pool.submit(work, *arguments).result()


def problems() -> list[str]:
    """Return what is wrong with the table of proofs."""
    proofs, known = table(), differences()
    wrong = [f"{name} is not a difference" for name in proofs.keys() - known.keys()]
    genuine = in_process(verdicts, [line for lines in proofs.values() for line in lines])
    for name in proofs.keys() & known.keys():
        flipped = in_process(verdicts, proofs[name], name)
        wrong += [f"{name}: {line} does not agree" for line in proofs[name] if not genuine.get(line)]
        wrong += [f"{name}: {line} agrees without it, too" for line in proofs[name] if flipped.get(line, True)]
    return sorted(wrong)


def rows() -> str:
    """Return the table as Markdown."""
    proofs = table()
    lines = ["| since | what changed | proof |", "|---|---|---|"]
    for name, (since, sentence) in sorted(differences().items(), key=lambda item: (item[1][0], item[0])):
        shown = [f"`{line.removeprefix('golden/').replace('|', chr(92) + '|')}`" for line in proofs.get(name, ())]
        lines.append(f"| {since} | `{name}`: {sentence} | {'<br>'.join(shown) or 'no recorded line'} |")
    return "\n".join(lines) + "\n"


def page() -> str:
    """Return the page with the current table."""
    return PAGE.read_text(encoding="utf-8").partition(_BEGIN)[0] + _BEGIN + rows()


def main() -> int:
    """Run the command; 1 if a proof is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.golden.changes", description=__doc__)
    parser.add_argument(
        "--find", nargs="*", metavar="NAME", help="look for proofs; without names, where there are none"
    )
    parser.add_argument("--write", action="store_true", help="write the table of the page")
    options = parser.parse_args()
    if options.find is not None:
        proofs = table()
        lines = in_process(asked)
        for name in options.find or sorted(differences().keys() - proofs.keys()):
            if found := find(name, lines.get(name, ())):
                proofs[name] = found
                _save(proofs)
            print(f"{name}: {', '.join(found) or 'no recorded line'}", flush=True)
    if options.write:
        PAGE.write_text(page(), encoding="utf-8")
    wrong = [] if options.find is not None else problems()
    print("\n".join(wrong) or f"{len(differences())} differences")
    return 1 if wrong else 0


def _save(proofs: dict[str, list[str]]) -> None:
    lines = [f"{name} = [{', '.join(map(_quoted, found))}]" for name, found in sorted(proofs.items())]
    TABLE.write_text("\n".join([f"{_HEAD}[proofs]", *lines, ""]), encoding="utf-8")


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


if __name__ == "__main__":
    sys.exit(main())
