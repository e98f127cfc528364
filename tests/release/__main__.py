"""Compares the tables of dra-kit with a release of Kubernetes, or derives them from it.

    python -m tests.release gates FILE…                     pkg/features/kube_features.go of each release
    python -m tests.release schema --server URL MODULE…     folders of the Go modules with its types
    python -m tests.release since MODULE…                   folders of the same modules of all supported releases
    python -m tests.release roles --server URL

URL is the address of ``kubectl proxy`` of a new cluster. Without ``--write``, print what differs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.release import gates, roles, schema


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the differences; return 1 if there are any."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.release", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    tables = parser.add_subparsers(dest="table", required=True, metavar="gates|schema|since|roles")
    for name, paths, written in (
        ("gates", "FILE", "record the gates of these releases in place of what was recorded of them"),
        ("schema", "MODULE", "replace the table"),
        ("since", "MODULE", "replace the table"),
        ("roles", "", "replace the table"),
    ):
        table = tables.add_parser(name)
        if paths:
            table.add_argument("paths", nargs="+", type=Path, metavar=paths)
        if name in {"schema", "roles"}:
            table.add_argument("--server", default="http://127.0.0.1:8001", metavar="URL")
        table.add_argument("--write", action="store_true", help=written)
    options = parser.parse_args(arguments)
    try:
        found = list(_compare(options))
    except (OSError, ValueError) as error:
        parser.error(str(error))
    print("\n".join(found) or f"{options.table}: no difference")
    return int(bool(found))


def _compare(options: argparse.Namespace) -> Iterator[str]:
    """Yield a line for each difference; then write the table if that is wanted."""
    if options.table == "gates":
        facts = gates.facts_of(options.paths)
        yield from gates.differences(facts)
        if options.write:
            gates.write(facts)
    elif options.table == "schema":
        table = schema.table_of(options.server, options.paths)
        yield from schema.differences(table, schema.recorded())
        if options.write:
            schema.write(table)
    elif options.table == "since":
        since = schema.since_of(options.paths, schema.recorded())
        yield from schema.since_differences(since, schema.recorded_since())
        if options.write:
            schema.write_since(since)
    else:
        rows = roles.roles_of(options.server)
        yield from roles.differences(rows, roles.recorded())
        if options.write:
            roles.write(rows)


if __name__ == "__main__":
    sys.exit(main())
