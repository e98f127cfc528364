"""What the whole test run has in common, and what it tells at its end."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Iterator
from importlib import import_module

import pytest
from hypothesis import HealthCheck, settings

from tests.hostile.ledger import PROPERTY, summary

# The roles of a sandbox run in threads, which would import them at once; and pytest, which rewrites dra_kit as it is
# imported since there is a plugin in it, cannot do that in two threads at a time (dra_kit/testing/bed.py tells more).
for role in ("node", "controller", "admission"):
    import_module(f"dra_kit.{role}.agent")

# a Makefile under test is read as its author would, not as a part of the `make` that started the tests
for variable in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS"):
    os.environ.pop(variable, None)

# Machines are shared: how long an example takes says nothing. Each run draws other examples, so that a few of them in
# each run find what many in one would; `make test EXAMPLES=1000` looks closer.
settings.register_profile(
    "dra-kit",
    deadline=None,
    max_examples=int(os.environ.get("EXAMPLES", "40")),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("dra-kit")
# gRPC has one poller for all event loops of a process, and may still call into that of a test which has ended
logging.getLogger("asyncio").addFilter(lambda record: "PollerCompletionQueue._handle_events" not in record.getMessage())


PROCESSES_SECONDS = 600


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test that starts ten processes in turn takes minutes where others want the processors."""
    for item in items:
        if item.get_closest_marker("processes") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(PROCESSES_SECONDS))


@pytest.fixture(autouse=True)
def _logging_restored() -> Iterator[None]:
    """A command sets up the logging of its process, which is that of the tests here."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    levels = [handler.level for handler in handlers]
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    for handler, before in zip(handlers, levels, strict=True):
        handler.setLevel(before)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What the crash tests did, what the attacks cost, and how far the golden files were agreed with."""
    _tell_golden_files(terminalreporter)
    _tell_crashes(terminalreporter)
    _tell_attacks(terminalreporter)


def _tell_golden_files(terminalreporter: pytest.TerminalReporter) -> None:
    """How many lines of each file agree with Kubernetes; see tests/golden."""
    files: dict[str, Counter[str]] = {}
    for outcome in ("passed", "failed"):
        for report in terminalreporter.getreports(outcome):
            for name, value in report.user_properties:
                if name == "golden":
                    title, agree, total, excused, not_run = value
                    counts = {"agree": agree, "total": total, "excused": excused, "not run": not_run}
                    files.setdefault(title, Counter()).update(counts)
    if not files:
        return
    terminalreporter.section("golden files")
    for title, counts in sorted(files.items()):
        notes = "".join(f", {counts[what]} {what}" for what in ("excused", "not run") if counts[what])
        terminalreporter.line(f"{title}: {counts['agree']}/{counts['total']} agree{notes}")


def _tell_crashes(terminalreporter: pytest.TerminalReporter) -> None:
    """How often processes were started, called and killed, and where; see tests/crash."""
    totals: Counter[str] = Counter()
    crashes: Counter[str] = Counter()
    corruptions: Counter[str] = Counter()
    for outcome in ("passed", "failed"):
        for report in terminalreporter.getreports(outcome):
            for name, value in report.user_properties:
                if name == "crash":
                    crashes[str(value)] += 1
                elif name == "corruption":
                    corruptions[str(value)] += 1
                elif name in {"starts", "calls", "seeds"}:
                    totals[name] += int(str(value))
    if totals:
        terminalreporter.section("crash tests")
        terminalreporter.line(
            f"{totals['seeds']} seeds, {totals['starts']} processes, {totals['calls']} calls of the kubelet, "
            f"{crashes.total()} crashes in {len(crashes)} places"
        )
        for where, count in sorted(crashes.items()):
            terminalreporter.line(f"{count:6} {where}")
    if corruptions:
        terminalreporter.section("corrupt state")
        terminalreporter.line(f"{corruptions.total()} bytes changed, nothing lost silently; reported outcomes:")
        for outcome, count in corruptions.most_common():
            terminalreporter.line(f"{count:6} {outcome}")


def _tell_attacks(terminalreporter: pytest.TerminalReporter) -> None:
    """How many attacks were held, and what the worst of them cost; see tests/hostile."""
    cases = [
        value
        for report in terminalreporter.getreports("passed")
        for name, value in report.user_properties
        if name == PROPERTY
    ]
    if not cases:
        return
    terminalreporter.section("attacks")
    for line in summary(cases):
        terminalreporter.line(line)
