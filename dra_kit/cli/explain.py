"""``dra-kit explain``."""

from __future__ import annotations

import asyncio
import datetime as dt
import gc
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import click
from click.shell_completion import CompletionItem
from msgspec.structs import replace

from dra_kit.cli.options import (
    NewFile,
    credentials_of,
    kubernetes_option,
    output_option,
    path,
    print_json,
    source_options,
)
from dra_kit.diagnosis.explain.allocated import enumerated
from dra_kit.diagnosis.explain.claims import ClaimExplainer
from dra_kit.diagnosis.explain.cluster import KINDS, ClusterDocuments, ClusterView
from dra_kit.diagnosis.explain.documents import (
    ReportPage,
    claim_document,
    missing_right_documents,
    pod_document,
    workload_documents,
)
from dra_kit.diagnosis.explain.pods import PodSequence, explain_pod
from dra_kit.diagnosis.explain.subjects import (
    DroppedFields,
    ExplainSubject,
    Manifests,
    SubjectKind,
    WorkloadExplanation,
    claim_of,
    claims_of_manifests,
    configured_drivers,
    explain_workload,
    pending_subjects,
    pod_of,
    without_former_pods,
)
from dra_kit.diagnosis.explain.text import (
    ReportWriter,
    render_claim,
    render_missing_rights,
    render_pod,
    render_workload,
)
from dra_kit.diagnosis.explain.verdicts import ClaimExplanation, PodExplanation
from dra_kit.diagnosis.live_cluster import ReadScope, read_live
from dra_kit.diagnosis.node_templates import NodeTemplates
from dra_kit.diagnosis.snapshot import load, read_manifests
from dra_kit.errors import ConfigurationError
from dra_kit.files import replace_private
from dra_kit.kubernetes.release import DEFAULT, NEWEST, KubernetesVersion
from dra_kit.kubernetes.resource.objects import object_key

NOT_GOOD: Final = 3
"""Exit code when something explained cannot get devices."""
UNDECIDED: Final = 4
"""Exit code when not everything could be examined, and nothing is known to prevent it."""
_KINDS_OF_CLAIM: Final = ("ResourceSlice", "DeviceClass", "DeviceTaintRule", "ResourceClaim", "Node", "Pod")
_USAGE: Final = "Name what to explain: 'claim NAME', 'pod NAME', 'pod/NAME', '-f FILE', or 'claim' or 'pod' alone."
_WORDS: Final[Mapping[str, SubjectKind]] = {
    **dict.fromkeys(("claim", "claims", "resourceclaim", "resourceclaims", "resourceclaims.resource.k8s.io"), "claim"),
    **dict.fromkeys(("pod", "pods", "po"), "pod"),
}
"""Kubectl's names of the kinds that can be explained."""


def _complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the KIND; names would need a cluster."""
    del param
    kinds = dict.fromkeys(_WORDS.values()) if not ctx.params.get("names") else ()
    return [CompletionItem(kind) for kind in kinds if kind.startswith(incomplete)]


@click.command
@click.argument("names", nargs=-1, metavar="[KIND [NAME...]|KIND/NAME...]", shell_complete=_complete)
@click.option(
    "-f",
    "--filename",
    "files",
    multiple=True,
    type=path(exists=True, allow_dash=True),
    help="explain the pods in this file or folder, those of Deployments and other objects with a pod template too, or "
    "without pods its claims and templates, as if they were applied; - reads standard input; may be repeated",
)
@click.option("--from", "saved", type=path(exists=True), help="read these saved objects instead of a cluster")
@click.option(
    "--template",
    "templates",
    multiple=True,
    type=path(exists=True),
    help="also examine whether a node of this template, a file of 'dra-kit template', would help; may be repeated",
)
@source_options
@click.option("-A", "--all-namespaces", is_flag=True, help="without a name: explain those pending in all namespaces")
@kubernetes_option("judge by the rules of this release  [default: that of the cluster]")
@click.option("--alpha", is_flag=True, help="assume that the cluster's alpha features of resource.k8s.io are on")
@output_option
@click.option("--html", type=NewFile(), help="write the explanation to this file, as a self-contained page to send")
@click.option("--all", "everything", is_flag=True, help="list all nodes and devices, however many")
@click.pass_context
def explain(ctx: click.Context, /, names: tuple[str, ...], files: tuple[Path, ...], **options: Any) -> None:
    """Explain why a claim or a pod gets devices, or why not, and what would have to change.

    KIND is claim or pod, or another name that kubectl accepts for them. Without a NAME, all pending ones are explained:
    claims without devices, or pods that do not run yet. Without arguments, all pending pods are explained.

    The command only reads. Resources that you are not allowed to read are listed with the missing right. --from reads
    the output of 'dra-kit snapshot', or a folder with the output of kubectl get -o yaml.

    Exit code 0: all have devices or can get them; 3: one cannot; 4: not everything could be examined, and nothing
    found so far prevents it; 1 or 2: no explanation is possible.

    \b
      dra-kit explain
      dra-kit explain claim lunch
      dra-kit explain pod guest -n kitchen
      dra-kit explain pod/guest resourceclaim/lunch
      dra-kit explain -f order.yaml
      dra-kit explain pod guest --html guest.html
      dra-kit explain claim lunch --from cluster.tar.gz -o json
      dra-kit explain pod train --template h100.yaml
    """  # noqa: D301 - click's mark for a paragraph that is not wrapped
    if options["html"] is not None and options["output"] == "json":
        raise click.UsageError("--html cannot be combined with -o json.")
    wanted = [] if files and not names else _wanted(names)
    if wanted and files:
        raise click.UsageError(f"Names and -f cannot be combined. {_USAGE}")
    # all objects are in use until the end: the garbage collector finds nothing, and takes half of the time
    gc.disable()
    try:
        code = _explain(wanted, files, options)
    finally:
        gc.enable()
    ctx.exit(code)


def _wanted(words: Sequence[str]) -> list[tuple[SubjectKind, str]]:
    """Return kinds and names of ``pod a b`` or ``pod/a claim/b``, as in kubectl; an empty name for all pending ones."""
    with_kind = [word.partition("/") for word in words if "/" in word]
    if with_kind and len(with_kind) < len(words):
        raise click.UsageError(f"'KIND NAME' and 'KIND/NAME' cannot be combined. {_USAGE}")
    if not all(name for _, _, name in with_kind):
        raise click.UsageError(_USAGE)
    kind, *names = words or ["pod"]
    pairs = [(kind, name) for kind, _, name in with_kind] or [(kind, name) for name in names or [""]]
    for kind, _ in pairs:
        if kind not in _WORDS:
            raise click.UsageError(f"{kind} cannot be explained. {_USAGE}")
    return [(_WORDS[kind], name) for kind, name in pairs]


def _explain(wanted: Sequence[tuple[SubjectKind, str]], files: Sequence[Path], options: Mapping[str, Any]) -> int:
    objects, namespace = _objects(options, wanted)
    if not wanted:
        slices = objects.documents.get("ResourceSlice", ())
        release = objects.release.also(*(["DRAExtendedResource"] if objects.extended_resources else ()))
        manifests = read_manifests(files, namespace, release=release, slices=slices)
        return _explain_manifests(objects, manifests, options)
    cluster = objects.cluster()
    if wanted[0][1]:
        return _explain_subjects(
            objects, cluster, [ExplainSubject(kind, namespace, name) for kind, name in wanted], options
        )
    kind, everywhere = wanted[0][0], options["all_namespaces"]
    where = "" if everywhere else f" of namespace {namespace}"
    subjects = pending_subjects(cluster, kind, None if everywhere else namespace)
    return _explain_subjects(objects, cluster, subjects, options, nothing=f"no {kind}{where} is pending")


def _explain_manifests(objects: ClusterDocuments, manifests: Manifests, options: Mapping[str, Any]) -> int:
    """Explain the pods of manifests, and of their workloads, in order; without any, the claims and templates."""
    notes = _Notes(configured_drivers(manifests.objects), manifests.dropped)
    if not manifests.workloads:
        subjects, given = claims_of_manifests(manifests.objects)
        if not subjects:
            raise click.UsageError(
                "-f: the files have no Pod, no object with a pod template, and no ResourceClaim or "
                "ResourceClaimTemplate to explain."
            )
        objects = objects.with_(given)
        return _explain_subjects(objects, objects.cluster(), subjects, options, notes=notes)
    pods = [workload.pod for workload in manifests.workloads]
    objects = without_former_pods(objects, manifests.workloads).with_({**manifests.objects, "Pod": pods})
    cluster = objects.cluster()
    explainer = ClaimExplainer(cluster)
    report, sequence = _Report(objects, cluster, options), PodSequence(explainer, objects.cluster)
    for workload in manifests.workloads:
        report.add_workload(explain_workload(sequence, workload, explainer))
    return report.finish(notes)


def _objects(options: Mapping[str, Any], wanted: Sequence[tuple[SubjectKind, str]]) -> tuple[ClusterDocuments, str]:
    """Return the objects of the cluster, and the namespace of names without one."""
    if options["saved"] is not None:
        objects, namespace = load(options["saved"]), options["namespace"] or "default"
    else:
        objects, namespace = asyncio.run(_read(options, wanted))
    named = str(options["kubernetes"] or "")
    return replace(objects, judged_as=named, alpha=objects.alpha or options["alpha"]), namespace


async def _read(options: Mapping[str, Any], wanted: Sequence[tuple[SubjectKind, str]]) -> tuple[ClusterDocuments, str]:
    credentials = await credentials_of(options["kubeconfig"], options["context"])
    namespace = options["namespace"] or credentials.connection.namespace or "default"
    only_claims = bool(wanted) and all(kind == "claim" for kind, _ in wanted)
    scope = ReadScope(
        namespace,
        _KINDS_OF_CLAIM if only_claims else KINDS,
        all_events=options["all_namespaces"],
        ended=tuple(name for kind, name in wanted if kind == "pod" and name),
        only_claims=only_claims,
    )
    return await read_live(credentials, scope), namespace


def _templates(objects: ClusterDocuments, options: Mapping[str, Any]) -> NodeTemplates | None:
    """Return the nodes of ``--template``; None without this option."""
    given: dict[str, list[Any]] = {}
    for file in options["templates"]:
        for kind, found in load(file).documents.items():
            given.setdefault(kind, []).extend(found)
    return NodeTemplates(objects, given) if given else None


def _explain_subjects(
    objects: ClusterDocuments,
    cluster: ClusterView,
    subjects: Sequence[ExplainSubject],
    options: Mapping[str, Any],
    *,
    nothing: str = "",
    notes: _Notes | None = None,
) -> int:
    """Explain claims and pods one by one; ``nothing`` is the text if there is none."""
    report, explainer = _Report(objects, cluster, options), ClaimExplainer(cluster)
    if not subjects:
        report.page.line(nothing)
    for subject in subjects:
        explainer.renew_budget()
        if subject.kind == "pod":
            report.add_pod(subject, explain_pod(explainer, pod_of(cluster, subject)))
        else:
            report.add_claim(subject, explainer.explain(claim_of(cluster, subject)))
    return report.finish(notes)


def _name_of(version: str) -> str:
    """Return ``1.35`` for the version of a cluster such as ``v1.35.2``; one without this API as it is."""
    try:
        return str(KubernetesVersion.parse(version))
    except ValueError:
        return version


class _Notes(NamedTuple):
    """What a reader has to know of manifests.

    Attributes:
        unchecked: the drivers whose configuration was not checked.
        dropped: the fields that the API server does not store.
    """

    unchecked: Sequence[str] = ()
    dropped: Sequence[DroppedFields] = ()


class _Report:
    """Collects explanations, as text, JSON or a page, and prints or writes them.

    Attributes:
        page: the text.
    """

    def __init__(self, objects: ClusterDocuments, cluster: ClusterView, options: Mapping[str, Any]) -> None:
        self._file: Path | None = options["html"]
        self._judged_by = objects.release.version
        self._version = _name_of(objects.version) if objects.complete else ""
        self.page: ReportWriter = self._writer(self._version or str(self._judged_by), everything=options["everything"])
        self._cluster = cluster
        self._as_json = options["output"] == "json"
        self._templates = _templates(objects, options)
        self._documents: list[dict[str, Any]] = []
        self._verdicts: list[tuple[bool, bool]] = []

    def _writer(self, version: str, *, everything: bool) -> ReportWriter:
        if self._file is not None:
            return ReportPage("Why pods and claims get devices, or not", version, everything=everything)
        width = shutil.get_terminal_size((100, 24)).columns
        return ReportWriter(width, colour=sys.stdout.isatty(), everything=everything)

    def add_claim(self, subject: ExplainSubject, explanation: ClaimExplanation) -> None:
        """Add the explanation of a claim."""
        if self._as_json:
            self._documents.append(claim_document(explanation))
        else:
            self.page.line()
            render_claim(self.page, explanation)
        self._judged(subject, good=explanation.good, undecided=explanation.undecided)

    def add_pod(self, subject: ExplainSubject, explanation: PodExplanation) -> None:
        """Add the explanation of a pod."""
        if self._as_json:
            self._documents.append(pod_document(explanation))
        else:
            self.page.line()
            render_pod(self.page, explanation)
        self._judged(subject, good=explanation.good, undecided=explanation.undecided)

    def add_workload(self, explanation: WorkloadExplanation) -> None:
        """Add the explanation of the pods of a workload."""
        if self._as_json:
            self._documents += workload_documents(explanation)
        else:
            self.page.line()
            render_workload(self.page, explanation)
        subject = ExplainSubject("pod", *object_key(explanation.workload.pod))
        self._judged(subject, good=explanation.good, undecided=explanation.undecided)

    def _judged(self, subject: ExplainSubject, *, good: bool, undecided: bool) -> None:
        """Record a verdict; if it is not good, add the nodes of templates that would help."""
        self._verdicts.append((good, undecided))
        if self._templates is None or good:
            return
        fits = self._templates.fits(subject)
        if self._as_json:
            self._documents[-1]["fittingTemplates"] = [{"node": fit.node, "certain": fit.certain} for fit in fits]
        for fit in fits:
            self.page.line(f"→ {fit}", indent=2, colour="yellow")
        if not fits:
            self.page.line("no node of a template would help", indent=2)

    def finish(self, notes: _Notes | None = None) -> int:
        """Print the report; return the exit code."""
        notes = notes or _Notes()
        good = all(one for one, _ in self._verdicts)
        gaps = self._cluster.gaps
        if self._as_json:
            found = {
                "kubernetes": self._version or str(self._judged_by),
                "judgedBy": str(self._judged_by),
                "good": good,
                "explanations": self._documents,
                "notRead": missing_right_documents(gaps),
            }
            dropped = [{"object": each.title, "file": each.where, "fields": each.paths} for each in notes.dropped]
            print_json({**found, "dropped": dropped} if dropped else found)
        else:
            self._add_release()
            render_missing_rights(self.page, gaps)
            for each in notes.dropped:
                self.page.line()
                option = f" --kubernetes {self._judged_by}" * (self._judged_by <= NEWEST)
                self.page.line(
                    f"an API server of Kubernetes {self._judged_by} drops {each}: dra-kit lint{option} FILE says why"
                )
            if notes.unchecked:
                self.page.line()
                self.page.line(
                    f"the opaque configuration for {enumerated(notes.unchecked)} is not checked: only the driver knows "
                    "its rules; dra-kit lint --driver TARGET FILE checks it"
                )
            self._show()
        if good:
            return 0
        return UNDECIDED if all(one or undecided for one, undecided in self._verdicts) else NOT_GOOD

    def _add_release(self) -> None:
        """Add whose rules were used, unless they are those of the default release, which the cluster has."""
        judged = self._judged_by
        known = f", as far as dra-kit knows them: it supports releases up to {NEWEST}" * (judged > NEWEST)
        if self._version not in {"", str(judged)}:
            text = f"the cluster is Kubernetes {self._version}; judged as if it were {judged}"
        elif judged != DEFAULT:
            text = f"judged by the rules of Kubernetes {judged}{known}"
        else:
            return
        self.page.line()
        self.page.line(text)

    def _show(self) -> None:
        if self._file is None or not isinstance(self.page, ReportPage):
            click.echo(str(self.page))
            return
        try:
            replace_private(self._file, self.page.html(dt.datetime.now(dt.UTC)).encode(errors="replace"))
        except OSError as error:
            raise ConfigurationError(f"--html {self._file} cannot be written: {error.strerror}") from None
        click.echo(f"the explanation is in {self._file}: one page without other files, to open in a browser or to send")
