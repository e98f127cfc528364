"""``dra-kit explain``."""

from __future__ import annotations

import asyncio
import difflib
import gc
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import click

from dra_kit.cli.options import path
from dra_kit.cli.source_options import credentials_of, source_options
from dra_kit.errors import NotFound
from dra_kit.values.printable import printable_json

if TYPE_CHECKING:
    from dra_kit.explain.cluster.cluster import Cluster, Document
    from dra_kit.explain.cluster.objects import Objects

NOT_GOOD: Final = 3
"""Exit code of an explanation whose answer is no."""

UNDECIDED: Final = 4
"""Exit code of an explanation that is neither yes nor no, since not everything was looked at."""

_KINDS_OF_CLAIM: Final = ("ResourceSlice", "DeviceClass", "DeviceTaintRule", "ResourceClaim", "Node")
_NAMES: Final = 8

_USAGE: Final = "Say what to explain: 'claim NAME', 'pod NAME', 'pod/NAME', or '-f FILE'."

SubjectKind = Literal["claim", "pod"]

_WORDS: Final[Mapping[str, SubjectKind]] = {
    **dict.fromkeys(("claim", "claims", "resourceclaim", "resourceclaims", "resourceclaims.resource.k8s.io"), "claim"),
    **dict.fromkeys(("pod", "pods", "po"), "pod"),
}
"""The words that kubectl has for what can be explained."""

Subject = tuple[SubjectKind, str, str]
"""Kind, namespace and name of what is to be explained."""


@click.command
@click.argument("names", nargs=-1, metavar="[KIND NAME...|KIND/NAME...]")
@click.option(
    "-f",
    "--filename",
    "files",
    multiple=True,
    type=path(exists=True, allow_dash=True),
    help="explain the pods of this file or folder, else its claims and templates, as if applied; - is standard input; "
    "may be repeated",
)
@click.option("--from", "saved", type=path(exists=True), help="look at these saved objects instead of a cluster")
@source_options
@click.option("--alpha", is_flag=True, help="the cluster's alpha features of resource.k8s.io are on")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option("--all", "everything", is_flag=True, help="tell of all nodes and devices, however many")
@click.pass_context
def command(
    ctx: click.Context,
    /,
    names: tuple[str, ...],
    files: tuple[Path, ...],
    **options: Any,
) -> None:
    """Tell why a claim or a pod gets devices, or why not, and what would have to change.

    KIND is claim or pod, or one of the words that kubectl has for them.

    Reading suffices: what may not be read is told, with the right that is missing. With --from, the objects of
    'dra-kit snapshot' are looked at, or those of a folder with what kubectl get -o yaml wrote.

    Exit code 0: it has devices or can get them; 3: it cannot; 4: devices fit, or nothing is against it so far, and not
    everything was looked at; 1 and 2: no explanation could be given.

    \b
      dra-kit explain claim lunch
      dra-kit explain pod guest -n kitchen
      dra-kit explain pod/guest resourceclaim/lunch
      dra-kit explain -f order.yaml
      dra-kit explain claim lunch --from cluster.tar.gz -o json
    """  # noqa: D301 - click's mark for a paragraph that is not wrapped
    wanted = _wanted(names)
    if bool(wanted) == bool(files):
        raise click.UsageError(_USAGE)
    # what is read is kept until the end: there is nothing to collect, and looking for it takes as long as all the rest
    gc.disable()
    try:
        code = _explain(wanted, files, options)
    finally:
        gc.enable()
    ctx.exit(code)


def _wanted(words: Sequence[str]) -> list[tuple[SubjectKind, str]]:
    """Kinds and names, as kubectl takes them: ``pod a b`` or ``pod/a claim/b``."""
    with_kind = [word.partition("/") for word in words if "/" in word]
    if with_kind and len(with_kind) < len(words):
        raise click.UsageError(f"{_USAGE} Not both at once.")
    pairs = [(kind, name) for kind, _, name in with_kind] or [(words[0], name) for name in words[1:]]
    if not all(name for _, name in pairs) or (words and not pairs):
        raise click.UsageError(_USAGE)
    for kind, _ in pairs:
        if kind not in _WORDS:
            raise click.UsageError(f"{kind} cannot be explained. {_USAGE}")
    return [(_WORDS[kind], name) for kind, name in pairs]


def _explain(wanted: Sequence[tuple[SubjectKind, str]], files: Sequence[Path], options: Mapping[str, Any]) -> int:
    only_claims = bool(wanted) and all(kind == "claim" for kind, _ in wanted)
    objects, namespace = _objects(options, _KINDS_OF_CLAIM if only_claims else None)
    if wanted:
        subjects: Sequence[Subject] = [(kind, namespace, name) for kind, name in wanted]
    else:
        objects, subjects = _with_manifests(objects, files, namespace)
    return _tell(objects.cluster(), subjects, as_json=options["output"] == "json", everything=options["everything"])


def _objects(options: Mapping[str, Any], kinds: Sequence[str] | None) -> tuple[Objects, str]:
    """What is known of the cluster, and the namespace that is meant where none is named."""
    if options["saved"] is not None:
        from dra_kit.snapshot.given import load

        objects = load(options["saved"])
        return replace(objects, alpha=objects.alpha or options["alpha"]), options["namespace"] or "default"
    return asyncio.run(_read(options, kinds))


async def _read(options: Mapping[str, Any], kinds: Sequence[str] | None) -> tuple[Objects, str]:
    from dra_kit.explain.cluster.objects import KINDS
    from dra_kit.snapshot.live import read_live

    credentials = await credentials_of(options["kubeconfig"], options["context"])
    namespace = options["namespace"] or credentials.namespace or "default"
    return await read_live(credentials, namespace, kinds or KINDS, alpha=options["alpha"]), namespace


def _with_manifests(objects: Objects, files: Sequence[Path], namespace: str) -> tuple[Objects, Sequence[Subject]]:
    """The objects together with those of manifests, and what of these is to be explained."""
    from dra_kit.snapshot.given import read_manifests

    given = read_manifests(files, namespace, alpha=objects.alpha)
    subjects = [_subject("pod", pod) for pod in given.get("Pod", ())]
    if not subjects:
        templates = [_claim_of(template) for template in given.get("ResourceClaimTemplate", ())]
        given.setdefault("ResourceClaim", []).extend(templates)
        subjects = [_subject("claim", claim) for claim in given["ResourceClaim"]]
    if not subjects:
        raise click.UsageError("-f: there is neither a Pod nor a ResourceClaim nor a ResourceClaimTemplate to explain.")
    return objects.with_(given), subjects


def _subject(kind: Literal["claim", "pod"], document: Document) -> Subject:
    metadata = document["metadata"]
    return kind, metadata["namespace"], metadata["name"]


def _claim_of(template: Document) -> Document:
    """A claim as it would be made from a template, by the template's name."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": template["metadata"]["name"], "namespace": template["metadata"]["namespace"]},
        "spec": template["spec"]["spec"],
    }


def _tell(cluster: Cluster, subjects: Sequence[Subject], *, as_json: bool, everything: bool) -> int:
    from dra_kit.explain.claims.document import claim_document, gap_documents
    from dra_kit.explain.claims.explainer import Explainer
    from dra_kit.explain.pods.explainer import explain_pod, pod_document
    from dra_kit.explain.text.claims import Page, tell_claim, tell_gaps
    from dra_kit.explain.text.pods import tell_pod

    explainer = Explainer(cluster)
    page = Page(colour=sys.stdout.isatty(), everything=everything)
    documents: list[dict[str, Any]] = []
    verdicts: list[tuple[bool, bool]] = []
    for kind, namespace, name in subjects:
        page.line()
        if kind == "pod":
            pod = explain_pod(explainer, _pod(cluster, namespace, name))
            verdicts.append((pod.good, pod.undecided))
            documents.append(pod_document(pod)) if as_json else tell_pod(page, pod)
        else:
            claim = cluster.claims.get((namespace, name))
            if claim is None:
                raise _missing(cluster, "ResourceClaim", namespace, name)
            explanation = explainer.explain(claim)
            verdicts.append((explanation.good, explanation.undecided))
            documents.append(claim_document(explanation)) if as_json else tell_claim(page, explanation)
    good = all(one for one, _ in verdicts)
    if as_json:
        gaps = gap_documents(cluster.gaps)
        whole = {"kubernetes": cluster.version, "good": good, "explanations": documents, "notRead": gaps}
        click.echo(printable_json(json.dumps(whole, indent=2, ensure_ascii=False)))
    else:
        tell_gaps(page, cluster.gaps)
        click.echo(str(page))
    if good:
        return 0
    return UNDECIDED if all(one or undecided for one, undecided in verdicts) else NOT_GOOD


def _pod(cluster: Cluster, namespace: str, name: str) -> Document:
    pod = cluster.find("Pod", namespace, name)
    if pod is None:
        raise _missing(cluster, "Pod", namespace, name)
    return pod


def _missing(cluster: Cluster, kind: str, namespace: str, name: str) -> NotFound:
    gap = cluster.gap(kind)
    if gap is not None:
        return NotFound(f"{kind} {namespace}/{name} could not be read: {gap.text}")
    names = [item["metadata"].get("name", "") for item in cluster.documents(kind)
             if item["metadata"].get("namespace") == namespace]  # fmt: skip
    similar = difflib.get_close_matches(name, names, n=1)
    elsewhere = [item["metadata"]["namespace"] for item in cluster.documents(kind) if item["metadata"]["name"] == name]
    if similar:
        hint = f"did you mean {similar[0]}?"
    elif elsewhere:
        hint = f"there is one in namespace {elsewhere[0]}: add -n {elsewhere[0]}"
    else:
        hint = f"the namespace has {', '.join(sorted(names)[:_NAMES]) or 'none'}; -n names another"
    return NotFound(f"there is no {kind} {namespace}/{name}; {hint}", status=404)
