"""Explanations as documents: JSON, and one self-contained page to send to a colleague."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import Any, Final, Literal, TypeAlias

import yaml
from msgspec import Struct
from msgspec.structs import replace
from typing_extensions import override

from dra_kit.diagnosis.explain.cluster import MissingRight
from dra_kit.diagnosis.explain.drivers import PodDeletion
from dra_kit.diagnosis.explain.subjects import WorkloadExplanation
from dra_kit.diagnosis.explain.text import ReportWriter
from dra_kit.diagnosis.explain.verdicts import (
    ClaimExplanation,
    DeviceVerdict,
    JudgedChoice,
    NodeOutcome,
    PodExplanation,
    Reason,
    summarize,
)
from dra_kit.kubernetes.resource.config import configs_for_driver
from dra_kit.kubernetes.resource.v1 import AllocationResult
from dra_kit.text import escape_unprintable


def claim_document(explanation: ClaimExplanation) -> dict[str, Any]:
    """Return the explanation of a claim as JSON."""
    allocation = explanation.claim.status.allocation
    return {
        "kind": "claim",
        "namespace": explanation.claim.metadata.namespace,
        "name": explanation.claim.metadata.name,
        "outcome": explanation.outcome,
        "release": explanation.release,
        "blockers": list(explanation.blockers),
        "nearest": [
            {
                "change": miss.change,
                "request": miss.request,
                "devices": miss.devices,
                "enough": miss.enough,
                "manifests": list(miss.manifests),
            }
            for miss in explanation.nearest
        ],
        "remedies": list(explanation.remedies),
        "notLookedAt": list(explanation.not_looked_at),
        "requests": [
            {"name": request.name, "choices": [_choice(judged) for judged in request.choices]}
            for request in explanation.requests
        ],
        "nodes": [_node(outcome) for outcome in explanation.nodes],
        **({"allocation": _allocation(allocation)} if allocation is not None else {}),
        "drivers": [
            {"driver": each.driver, "node": each.node, "presence": each.presence, "problem": each.problem}
            for each in explanation.drivers
        ],
    }


def missing_right_documents(gaps: Iterable[MissingRight]) -> list[dict[str, str]]:
    """Return the objects that could not be read as JSON."""
    return [{"kind": gap.kind, "text": gap.text, "consequence": gap.consequence} for gap in gaps]


def _choice(judged: JudgedChoice) -> dict[str, Any]:
    if judged.choice is None:
        return {"name": judged.name, "error": str(judged.error)}
    return {
        "name": judged.name,
        "deviceClass": judged.choice.device_class.metadata.name,
        "count": None if judged.choice.all_devices else judged.choice.count,
        "summary": summarize(judged.devices),
        "fitting": dict(judged.fitting),
        "devices": [_device(verdict) for verdict in judged.devices],
    }


def _device(verdict: DeviceVerdict) -> dict[str, Any]:
    return {
        "driver": verdict.id.driver,
        "pool": verdict.id.pool,
        "device": verdict.id.device,
        "nodes": list(verdict.nodes),
        "fits": verdict.fits,
        "reasons": [_reason(reason) for reason in verdict.reasons],
    }


def _reason(reason: Reason) -> dict[str, Any]:
    remedy = reason.remedy.text if reason.remedy is not None else ""
    return {"check": str(reason.check), "text": reason.text, "remedy": remedy, **reason.details}


def _node(outcome: NodeOutcome) -> dict[str, Any]:
    document: dict[str, Any] = {"name": outcome.node.name, "fits": outcome.allocations is not None}
    if outcome.error is not None:
        document["error"] = {"kind": outcome.error.kind, "text": str(outcome.error)}
    if outcome.allocations is not None:
        document["allocations"] = [_allocation(allocation) for allocation in outcome.allocations]
    return document


def _allocation(allocation: AllocationResult) -> list[dict[str, Any]]:
    """Return the allocated devices as JSON, each with its configurations in increasing precedence."""
    return [
        {
            **result.to_json(),
            "config": [
                {"source": config.source, "parameters": config.opaque.parameters if config.opaque is not None else None}
                for config in configs_for_driver(allocation.devices.config, result.request, result.driver)
            ],
        }
        for result in allocation.devices.results
    ]


def pod_document(explanation: PodExplanation) -> dict[str, Any]:
    """Return the explanation of a pod as JSON."""
    namespace, _, name = explanation.name.partition("/")
    return {
        "kind": "pod",
        "namespace": namespace,
        "name": name,
        "outcome": explanation.outcome,
        "node": explanation.node,
        "after": [{"name": pod.name, "node": pod.node} for pod in explanation.after],
        "problems": [*explanation.foreword, *explanation.problems],
        "remedies": list(explanation.remedies),
        "notLookedAt": list(explanation.not_looked_at),
        "rejections": {
            node: [*explanation.rejections.get(node, ()), *explanation.elsewhere.get(node, ())]
            for node in (*explanation.rejections, *explanation.elsewhere)
        },
        "fittingNodes": list(explanation.fitting),
        "events": list(map(str, explanation.events)),
        **({"deletion": _deletion(explanation.deletion)} if explanation.deletion is not None else {}),
        "extendedResources": [resource.name for resource in explanation.resources if resource.by_claim],
        "resources": [resource.to_json() for resource in explanation.resources],
        "claims": [
            {
                "entry": claim.entry,
                "problem": claim.problem,
                "origin": claim.origin,
                **({"claim": claim_document(claim.explanation)} if claim.explanation is not None else {}),
            }
            for claim in explanation.claims
        ],
    }


def workload_documents(explanation: WorkloadExplanation) -> list[dict[str, Any]]:
    """Return the explanation of a pod as JSON, or that of a workload, and those of its pods."""
    pods = [pod_document(each) for each in explanation.explained]
    workload = explanation.workload
    if workload.kind == "Pod":
        return pods
    whole = {
        "kind": "workload",
        "workload": workload.kind,
        "namespace": workload.namespace,
        "name": workload.name,
        "path": workload.path,
        "pods": explanation.count,
        "examined": explanation.examined,
        "placed": [{"name": pod.name, "node": pod.node} for pod in explanation.placed],
        "text": explanation.text,
        "note": explanation.note,
    }
    return [whole, *pods]


def _deletion(deletion: PodDeletion) -> dict[str, Any]:
    return {
        "since": deletion.since,
        "waitsFor": list(deletion.waits_for),
        "text": deletion.text,
        "remedies": list(deletion.remedies),
    }


Tone: TypeAlias = Literal["plain", "good", "bad", "hint"]
_TONES: Final[Mapping[str, Tone]] = {"green": "good", "red": "bad", "yellow": "hint"}
_WIDTH: Final = 100
_VERDICTS: Final = ("✓ ", "✗ ", "? ")
_REASON: Final = 2
"""Indent of the lines below a verdict that give its reasons."""
_WHERE: Final = "# in the claim's spec, or in spec.spec of its template"


class ReportLine(Struct, frozen=True):
    """A line of an explanation.

    Attributes:
        text: with the mark that its tone has in a terminal: ``✓``, ``✗``, ``→`` or ``!``; empty between two parts.
        indent: 0 or more; lines belong to the line with less indent before.
        manifest: what to change, as YAML to copy; empty for none.
    """

    text: str
    indent: int = 0
    tone: Tone = "plain"
    bold: bool = False
    manifest: str = ""


class ReportPage(ReportWriter):
    """Collects lines for a page; ``str()`` is the same as plain text.

    Args:
        title: of the page.
        version: of the Kubernetes cluster; empty if it is not known.
        everything: abbreviate nothing.
    """

    def __init__(self, title: str, version: str = "", *, everything: bool = False) -> None:
        super().__init__(_WIDTH, colour=False, everything=everything)
        self.title: str = title
        self.lines: list[ReportLine] = []
        self._version = version

    @override
    def line(
        self, text: str = "", indent: int = 0, hang: int = 2, *, colour: str | None = None, bold: bool = False
    ) -> None:
        super().line(text, indent, hang, colour=colour, bold=bold)
        if text or (self.lines and self.lines[-1].text):
            shown = escape_unprintable(" ".join(text.split()))
            self.lines.append(ReportLine(shown, indent, _TONES.get(colour or "", "plain"), bold))

    @override
    def suggestion(self, text: str, manifests: Sequence[Mapping[str, Any]]) -> None:
        super().suggestion(text, manifests)
        if manifests:
            last = self.lines.pop()
            self.lines.append(ReportLine(last.text, last.indent, last.tone, last.bold, _as_yaml(manifests)))

    @property
    def summary(self) -> list[ReportLine]:
        """The verdicts, each with its reasons and what would help."""
        found, after_verdict = dict[ReportLine, None](), False
        for line in self.lines:
            if not line.indent:
                after_verdict = line.text.startswith(_VERDICTS)
            if after_verdict and line.indent <= _REASON:
                found[line] = None
        return list(found)

    def html(self, now: dt.datetime) -> str:
        """Return the page, which needs no other file, runs no script and requests nothing."""
        release = f"Kubernetes {self._version} · " if self._version else ""
        return _PAGE.format(
            title=escape(self.title),
            style=_STYLE,
            about=escape(f"{release}{now:%Y-%m-%d %H:%M} UTC · dra-kit explain"),
            summary="\n".join(_markup(self.summary)),
            report="\n".join(_markup(replace(line, manifest="") for line in self.lines)),
        )


def _as_yaml(manifests: Sequence[Mapping[str, Any]]) -> str:
    texts = [
        ("" if "kind" in each else f"{_WHERE}\n")
        + yaml.safe_dump(dict(each), sort_keys=False, width=1_000)  # what is not ASCII is escaped
        for each in manifests
    ]
    return "---\n".join(texts).rstrip("\n")


def _markup(lines: Iterable[ReportLine]) -> Iterator[str]:
    """Yield the lines as HTML: bold ones at the margin are headings, what is indented below them is a list."""
    listed = False
    for line in (line for line in lines if line.text):
        heading, item = line.bold and not line.indent, line.indent > 0
        if item is not listed:
            listed = item
            yield "<ul>" if item else "</ul>"
        tag = "h2" if heading else "li" if item else "p"
        weight = " strong" if line.bold and not heading else ""
        depth = f" depth-{min((line.indent + 1) // 2, _DEPTHS)}" if item else ""
        code = f"<pre><code>{escape(line.manifest)}</code></pre>" if line.manifest else ""
        yield f'<{tag} class="{line.tone}{weight}{depth}">{escape(line.text)}{code}</{tag}>'
    if listed:
        yield "</ul>"


_DEPTHS: Final = 4
_STYLE: Final = """\
:root { color-scheme: light dark; }
body { margin: 2rem auto; max-width: 56rem; padding: 0 1.2rem; font: 1rem/1.5 system-ui, sans-serif;
  background: light-dark(#fbfbf9, #15171a); color: light-dark(#1d1f21, #e8e6e1); overflow-wrap: anywhere; }
h1 { font-size: 1.35rem; margin: 0; }
h2 { font-size: 1.02rem; margin: 1.3rem 0 .3rem; }
p { margin: .4rem 0; }
header p, footer { color: light-dark(#5c5e60, #a6a8ac); font-size: .9rem; }
ul { list-style: none; margin: .2rem 0 .6rem; padding-left: .9rem;
  border-left: 2px solid light-dark(#d9d8d2, #3a3f46); }
li { padding: .12rem 0; }
.depth-2 { margin-left: 1.2rem; } .depth-3 { margin-left: 2.4rem; } .depth-4 { margin-left: 3.6rem; }
.strong { font-weight: 600; }
.summary { border-left: 4px solid light-dark(#1a56db, #8ab4ff); padding-left: 1rem; margin: 1.2rem 0 1.8rem; }
.summary h2, .summary p { margin: .2rem 0; } .summary ul { border: 0; padding-left: 0; }
.good { color: light-dark(#156a30, #6fd487); }
.bad { color: light-dark(#a51d12, #ff9d90); }
.hint { color: light-dark(#7a5200, #ecc35c); }
pre { color: light-dark(#1d1f21, #e8e6e1); background: light-dark(#eeede7, #25292e); border-radius: 6px;
  padding: .6rem .8rem; overflow: auto; font: .85rem/1.5 ui-monospace, monospace; }
@media print { body { margin: 0; max-width: none; } }"""
_PAGE: Final = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
{style}
</style>
</head>
<body>
<header><h1>{title}</h1><p>{about}</p></header>
<main>
<section class="summary">
{summary}
</section>
<section>
<h2>In detail</h2>
{report}
</section>
</main>
</body>
</html>
"""
