"""What a container of a real cluster has, as it prints it: with ``env``, ``ls -l /dev/…`` and ``mountinfo``."""

from __future__ import annotations

import re
from collections.abc import Mapping

_VARIABLE = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)")
_DEVICE_FILE = re.compile(r"([bc])[rwxsStT-]{9}\S*\s+\d+\s+\S+\s+\S+\s+(\d+),\s*(\d+)\s.*?\s(/\S+)")
_MOUNT = re.compile(r"\d+ \d+ \d+:\d+ (\S+) (\S+) \S+ .*?- \S+ \S+ \S+")


def variables(output: str) -> Mapping[str, str]:
    """Return the variables that ``env`` printed; values with line breaks are cut."""
    return {match[1]: match[2] for match in _lines(_VARIABLE, output)}


def device_nodes(output: str) -> Mapping[str, str] | None:
    """Return type and numbers of what ``ls -l`` listed by its absolute path, by path; None where it listed nothing."""
    return {match[4]: f"{match[1]} {match[2]}:{match[3]}" for match in _lines(_DEVICE_FILE, output)} or None


def mounts(output: str) -> Mapping[str, str] | None:
    """Return the root of each mount within its file system, by where it is mounted; None where no mount was printed.

    That is the path on the node, without that of the file system (proc_pid_mountinfo(5)).
    """
    return {match[2]: match[1] for match in _lines(_MOUNT, output)} or None


def _lines(pattern: re.Pattern[str], output: str) -> list[re.Match[str]]:
    return [match for line in output.splitlines() if (match := pattern.fullmatch(line))]
