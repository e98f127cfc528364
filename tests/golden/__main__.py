"""Replays golden files: ``python -m tests.golden FILE...``.

Exit status: 0 all agree, are unsupported or listed in ``exceptions.toml``; 1 some differ, or are listed and agree; 2 a
file cannot be read or is of no known kind.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.golden.files import Unreadable, cases, kind_of, read, release_of, title
from tests.golden.report import Agreement


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.golden", description="Replay verdicts of real Kubernetes.")
    parser.add_argument("files", metavar="FILE", nargs="+", type=Path, help="JSON lines, gzip accepted")
    parser.add_argument("--json", action="store_true", help="one JSON object with all differences")
    parser.add_argument("--show", metavar="N", type=int, default=5, help="differences shown of each kind (default 5)")
    options = parser.parse_args(arguments)

    agreements: dict[str, Agreement] = {}
    unreadable = False
    for path in options.files:
        try:
            lines = read(path)
            kind = kind_of(path, lines[0])
            agreements.setdefault(title(kind, path), Agreement()).add(str(path), cases(kind, lines, release_of(path)))
        except Unreadable as error:
            unreadable = True
            print(f"error: {path}: {error}", file=sys.stderr)

    if options.json:
        print(json.dumps({name: agreement.as_json() for name, agreement in agreements.items()}, indent=2))
    else:
        for name, agreement in agreements.items():
            print(f"{name}: {agreement}")
            for difference in agreement.differences[: options.show]:
                print(difference)
    if unreadable:
        return 2
    return 1 if any(agreement.failed for agreement in agreements.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
