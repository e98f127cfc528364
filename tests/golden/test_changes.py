"""The table of differences between releases is proven by recorded lines, and is on its page."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from dra_kit.kubernetes.release import SUPPORTED
from tests.golden.changes import PAGE, differences, page, table

REPOSITORY = Path(__file__).parents[2]


def test_each_proof_agrees_and_does_not_without_the_difference() -> None:
    # a new process: the lines may not have been replayed before
    done = subprocess.run(
        [sys.executable, "-m", "tests.golden.changes"], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )

    assert done.stdout == f"{len(differences())} differences\n", done.stdout + done.stderr
    assert done.returncode == 0


def test_the_page_has_the_current_table() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run python -m tests.golden.changes --write"


def test_every_release_has_proven_differences() -> None:
    proven = {differences()[name][0] for name in table()}

    assert proven == set(SUPPORTED[1:])
