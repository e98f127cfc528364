"""The feature gates of a release, read from ``pkg/features/kube_features.go`` of Kubernetes.

Those of each release are recorded in ``tests/data/kubernetes/gates.jsonl``; ``test_gates.py`` compares them with the
table of :mod:`dra_kit.kubernetes.release`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from dra_kit.kubernetes.release import GATES, INERT_GATES, KubernetesVersion
from tests.golden import files

RECORDED: Final = Path(__file__).parents[1] / "data" / "kubernetes" / "gates.jsonl"
_RELEASE: Final = re.compile(r"(?<![0-9.])v?(1\.[0-9]+)\.[0-9]+")
_ENTRY: Final = re.compile(r"^\t(?:\w+\.)?(\w+): \{\n(.*?)^\t\},$", re.MULTILINE | re.DOTALL)
_STEP: Final = re.compile(
    r'MustParse\("(1\.[0-9]+)"\), Default: (true|false), PreRelease: featuregate\.\w+'
    r'(, LockToDefault: true)?(?:, MinCompatibilityVersion: version\.MustParse\("(1\.[0-9]+)"\))?'
)
_NEEDS: Final = re.compile(r"^\t(?:\w+\.)?(\w+):\s+\{([\w, .]*)\},(?: //.*)?$", re.MULTILINE)
_CONCERNED: Final = re.compile(
    r"DRA|DynamicResource|ResourceHealth|PodsAPI|GenericWorkload|DeclaredFeatures|ShardedList"
)


class GateFacts(NamedTuple):
    """A feature gate as the sources of one release have it.

    Attributes:
        release: ``1.38``.
        gate: its name.
        default: whether it is on by default.
        locked: whether it cannot be changed.
        since: the first release that has it.
        needs: gates that must be on with it.
    """

    release: str
    gate: str
    default: bool
    locked: bool
    since: str
    needs: tuple[str, ...]


def gates_of(source: str, release: str) -> Iterator[GateFacts]:
    """Yield the gates in the text of ``kube_features.go`` that are about DRA, in order of their names."""
    needs = {
        name: tuple(word.strip().rpartition(".")[2] for word in words.split(",") if word.strip())
        for name, words in _NEEDS.findall(source)
    }
    for name, body in sorted(_ENTRY.findall(source)):
        # by default, a server is compatible with the release before its own
        steps = [
            step for step in _STEP.findall(body)
            if _minor(step[0]) <= _minor(release) and (not step[3] or _minor(step[3]) < _minor(release))
        ]  # fmt: skip
        if steps and _CONCERNED.search(name):
            _, default, locked, _ = steps[-1]
            yield GateFacts(release, name, default == "true", bool(locked), steps[0][0], needs.get(name, ()))


def differences(facts: Iterable[GateFacts]) -> Iterator[str]:
    """Yield a line for each difference between these facts and the table of dra-kit."""
    by_release: dict[str, set[str]] = {}
    facts = list(facts)
    locked_gates = {(fact.release, fact.gate) for fact in facts if fact.locked}
    for fact in facts:
        by_release.setdefault(fact.release, set()).add(fact.gate)
        history = GATES.get(fact.gate)
        if history is None:
            if fact.gate not in INERT_GATES:
                yield f"{fact.gate} of {fact.release} is missing: add it to GATES, or to INERT_GATES with the reason"
            continue
        minor = _minor(fact.release)
        on = history.on is not None and history.on <= minor
        locked = history.locked is not None and history.locked <= minor
        compared: list[tuple[str, object, object]] = [
            ("on by default", fact.default, on),
            ("locked", fact.locked, locked),
            ("known since", _minor(fact.since), history.known),
        ]
        if any(other.needs for other in facts if other.release == fact.release):  # 1.34 has no table of them
            # a gate that is always on is not a condition
            needs = {gate for gate in fact.needs if (fact.release, gate) not in locked_gates}
            ours = {gate for gate in history.needs if (fact.release, gate) not in locked_gates}
            compared.append(("needs", needs, ours))
        for what, there, here in compared:
            if there != here:
                yield f"{fact.gate} of {fact.release}, {what}: {there} in Kubernetes, {here} in GATES"
    for release, names in sorted(by_release.items()):
        minor = _minor(release)
        served = {
            name for name, gate in GATES.items()
            if gate.known <= minor and (gate.removed is None or minor < gate.removed)
        }  # fmt: skip
        for name in sorted(served - names):
            yield f"{name} of {release} is in GATES, but not in Kubernetes: set 'removed'"


def recorded(file: Path = RECORDED) -> list[GateFacts]:
    """Return the recorded gates of all releases."""
    return [GateFacts(**line | {"needs": tuple(line["needs"])}) for line in files.read(file)]


def facts_of(files: Iterable[Path]) -> list[GateFacts]:
    """Return the gates of each file.

    Raises:
        ValueError: its path does not name the release.
    """
    facts: list[GateFacts] = []
    for file in files:
        releases = _RELEASE.findall(str(file.resolve()))
        if not releases:
            raise ValueError(f"{file}: its path does not name the release; put it in a folder such as v1.38.0")
        facts += gates_of(file.read_text(), releases[-1])
    return facts


def write(facts: Iterable[GateFacts], file: Path = RECORDED) -> None:
    """Replace the recorded gates of the releases of these; those of other releases stay."""
    new = list(facts)
    given = {fact.release for fact in new}
    kept = [fact for fact in recorded(file) if fact.release not in given]
    lines = sorted([*kept, *new], key=lambda fact: _minor(fact.release))
    file.write_text("".join(json.dumps(fact._asdict()) + "\n" for fact in lines))


def _minor(release: str) -> int:
    return KubernetesVersion(1, int(release.partition(".")[2])).minor
