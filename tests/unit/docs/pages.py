"""The contents of a page of docs/how-to, and what a reader does with it.

A page is plain Markdown; its blocks are files and commands by these rules:

- The first line of a block names its file: ``# driver.py``, ``# order.yaml``. Commands find all of these in one folder.
- A Python block without a name goes on with the first module. Modules are type-checked, and imported by tests.
- In a ``console`` block, ``$ dra-kit …`` and ``$ pytest …`` are run, one after another; what follows each must be its
  output. A line ``…`` stands for any number of lines. Times, UIDs, random names do not count. Other commands need a
  real cluster, and are not run.
- A YAML block without a name is a part of an object.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from contextlib import chdir
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from click.testing import CliRunner

from dra_kit.cli.app import cli

ROOT = Path(__file__).resolve().parents[3]
HOW_TO = ROOT / "docs" / "how-to"
PROGRAMS = ("dra-kit", "pytest")
GAP = "…"
WRONG = "wrong.yaml"
"""The manifest of a page that is to have errors."""

_NAME = re.compile(r"# ([\w.-]+\.(?:py|yaml|toml))\n")
_ENTRY = re.compile(r" *(?:\d+\.\d\d s|T) ")
_UNSTEADY = (
    (r"^ *\d+\.\d\d s ", "T "),  # when something happened
    (r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}", "UID"),
    (r"\b\d+\.\d ms\b", "MS"),
    (r"\b(?:in )?\d+\.\d+s\b", "S"),  # pytest
    (r"(ResourceSlice [\w.-]+?)-[a-z0-9]{5}\b", r"\1-RANDOM"),
    (
        r"\b([\w-]+-[\w-]+)-[bcdfghjklmnpqrstvwxz2456789]{5}\b",
        r"\1-RANDOM",
    ),  # claims of templates, as Kubernetes ends names
    (r"/tmp/[\w-]*dra-\w+", "/tmp/dra-RANDOM"),
)


class Block(NamedTuple):
    """A block of code: its language, its file (empty: none), its text without the line that names the file."""

    language: str
    file: str
    text: str


class Command(NamedTuple):
    """A command of a console block, and the lines that a page says it prints."""

    words: Sequence[str]
    output: Sequence[str]


@dataclass(frozen=True)
class Page:
    """A page of docs/how-to."""

    path: Path
    blocks: Sequence[Block] = field(repr=False)

    @property
    def text(self) -> str:
        """All of it."""
        return self.path.read_text(encoding="utf-8")

    def files(self) -> dict[str, str]:
        """The files that its reader makes."""
        return {block.file: block.text for block in self.blocks if block.file}

    def modules(self) -> dict[str, str]:
        """By file name, Python files with the blocks that go on with them."""
        found: dict[str, str] = {}
        for block in self.blocks:
            if block.language == "python":
                name = block.file or next(iter(found), "")
                assert name, f"{self.path.name}: the first Python block names no file"
                found[name] = found[name] + "\n\n" + block.text if name in found else block.text
        return found

    def commands(self) -> list[Command]:
        """The commands that can be run here, in their order."""
        found: list[Command] = []
        for block in self.blocks:
            if block.language == "console":
                for part in re.split(r"^(?=[$#] )", block.text, flags=re.MULTILINE):
                    line, _, output = part.partition("\n")
                    words = line.removeprefix("$ ").partition("  #")[0].split()
                    if line.startswith("$ ") and words[0] in PROGRAMS:
                        found.append(Command(words, output.splitlines()))
        return found

    def lay_out(self, folder: Path) -> None:
        """Make the files, and those of ``$ echo TEXT > FILE``."""
        echoed = re.findall(r"^\$ echo (.*) > (\S+)$", self.text, re.MULTILINE)
        for name, text in [*self.files().items(), *((name, f"{text}\n") for text, name in echoed)]:
            (folder / name).write_text(text, encoding="utf-8")

    def load(self, name: str = "driver.py") -> ModuleType:
        """A module of it, with the blocks that go on with it, as an import gives it."""
        module = ModuleType(f"{self.path.stem}_{name.removesuffix('.py')}".replace("-", "_"))
        sys.modules[module.__name__] = module  # where pydantic looks for what annotations name
        exec(compile(self.modules()[name], f"{self.path}:{name}", "exec"), module.__dict__)  # noqa: S102 - our own page
        return module


def page(name: str) -> Page:
    """The page of a file below docs/how-to."""
    path = HOW_TO / name
    found = re.findall(r"^```(\w+)\n(.*?)^```$", path.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    blocks = []
    for language, text in found:
        named = _NAME.match(text)
        blocks.append(Block(language, named[1], text[named.end() :]) if named else Block(language, "", text))
    return Page(path, blocks)


def run(command: Command, folder: Path) -> str:
    """What a command prints, standard output and standard error together; dra-kit runs in the process of the tests."""
    name, *arguments = command.words
    if name == "dra-kit":
        with chdir(folder):
            runner = CliRunner(env={"COLUMNS": "80"})
            return runner.invoke(cli, arguments, prog_name=name, catch_exceptions=False).output
    arguments += ["-p", "no:asyncio"]  # a plugin of ours, which would warn
    done = subprocess.run(
        [str(Path(sys.executable).with_name(name)), *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=300,
    )
    return done.stdout


def prints(output: str, told: Sequence[str]) -> str:
    """Return the entries of a page that an output lacks; empty if it has all.

    What the sandbox tells is taken by entries, whose order does not matter, since pods run side by side.

    Args:
        output: what a command printed.
        told: the lines of the page.
    """
    printed = _entries(output.splitlines())
    for entry in _entries(told):
        if not any(_matches(entry, known) for known in printed):
            text = "\n".join(entry)
            return f"the page tells, and the command does not print:\n{text}\n\nit prints:\n{output}"
    return ""


def _entries(lines: Iterable[str]) -> list[list[str]]:
    found: list[list[str]] = [[]]
    for line in lines:
        if _ENTRY.match(line):
            found.append([])
        if line.strip() and not (line == GAP and _ENTRY.match("".join(found[-1][:1]))):
            found[-1].append(_steady(line))
    return [entry for entry in found if entry and entry != [GAP]]


def _matches(told: Sequence[str], printed: Sequence[str]) -> bool:
    """Return whether an entry is equal to the output, or has gaps."""
    if not any(line.strip() == GAP for line in told):
        return told == printed
    rest = iter(printed)
    return all(line in rest for line in told if line.strip() != GAP)


def _steady(line: str) -> str:
    for pattern, name in _UNSTEADY:
        line = re.sub(pattern, name, line)
    return line.rstrip()
