"""What works on which release: the lint compared over releases, and with the API server of each."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any, Final

import aiohttp
import pytest
import yaml

from dra_kit.apiserver.api import ALPHA_VERSIONS, RuntimeConfig
from dra_kit.apiserver.server import ApiServer
from dra_kit.diagnosis.lint import releases as lint_releases
from dra_kit.diagnosis.lint.devices import LintContext
from dra_kit.diagnosis.lint.findings import LintFinding, format_json
from dra_kit.diagnosis.lint.releases import (
    check_releases,
    format_oldest,
    format_releases,
    format_unrendered,
    named_releases,
    objects_on_releases,
    unrendered,
)
from dra_kit.kubernetes.manifests.documents import SourceFile
from dra_kit.kubernetes.release import GATES, SUPPORTED, KubernetesVersion, Release
from tests.unit.diagnosis.lint.texts import claim, device_class, found, pod, underlined

RELEASES = [Release.of(KubernetesVersion(1, minor)) for minor in range(34, 39)]
OLD, NEW = RELEASES[0], RELEASES[-1]
SHARED = claim("deviceClassName: gpu\ncapacity: {requests: {memory: 10Gi}}")
PLAIN = claim()
DERIVED = claim(
    "deviceClassName: gpu\nderivedAttributes: [{name: a/b, expression: 'device.driver'}]",
    extra="constraints: [{matchAttribute: a/b}]",
)
OLD_VERSION = device_class().replace("resource.k8s.io/v1", "resource.k8s.io/v1beta1")


def compared(*texts: str) -> list[LintFinding]:
    files = [SourceFile(f"{number}.yaml", textwrap.dedent(text)) for number, text in enumerate(texts)]
    return check_releases(files, [LintContext(release=release) for release in RELEASES]).findings


def oldest(*texts: str, releases: Sequence[Release] = RELEASES) -> str:
    files = [SourceFile(f"{number}.yaml", textwrap.dedent(text)) for number, text in enumerate(texts)]
    return format_oldest(objects_on_releases(files, releases), releases)


def verdicts(text: str, releases: Sequence[Release] = RELEASES) -> list[str]:
    [judged] = objects_on_releases([SourceFile("a.yaml", textwrap.dedent(text))], releases)
    return [judged.verdicts[release.version] for release in releases]


def test_a_field_that_only_some_releases_drop_names_them_and_the_history_of_its_gate() -> None:
    (finding,) = compared(SHARED)

    assert (finding.rule, finding.level, underlined(finding)) == ("feature-gate", "warning", "capacity")
    assert finding.message == (
        "in Kubernetes 1.34 and 1.35: an API server drops this field: exactly.capacity needs Kubernetes 1.34 with "
        "DRAConsumableCapacity; on by default since 1.36"
    )
    assert finding.releases == ("1.34", "1.35")
    assert '"kubernetes": [\n      "1.34",\n      "1.35"\n    ]' in format_json([finding])


def test_a_problem_of_all_releases_is_reported_once_without_their_names() -> None:
    (finding,) = compared(claim("deviceClassName: gpu\ncount: -1"))

    assert "in Kubernetes" not in finding.message
    assert finding.releases == ()


def test_a_gate_that_a_release_does_not_have_needs_an_upgrade() -> None:
    amounts = (
        FRACTION.replace("'2'", "'6'").replace("500m", "'3'", 1).replace("min: 500m, step: 500m", "min: 0, step: 1500m")
    )
    (old,) = found(amounts, LintContext(release=Release.alpha(OLD.version)))

    assert old.help == (
        "the feature gate DRAFractionalCapacityRange allows it: upgrade the cluster to Kubernetes 1.37 or newer with "
        "--feature-gates=DRAFractionalCapacityRange=true"
    )


def test_a_gate_that_is_on_later_suggests_the_upgrade_or_the_gate() -> None:
    (finding,) = found(SHARED, LintContext(release=OLD))

    assert finding.help == (
        "start the API server with --feature-gates=DRAConsumableCapacity=true, or upgrade the cluster to Kubernetes "
        "1.36; --alpha checks for an API server that has it"
    )


def test_a_version_that_a_release_has_removed_is_an_error_with_the_conversion() -> None:
    (before,) = found(OLD_VERSION, LintContext(release=Release.of(KubernetesVersion(1, 37))))
    (after,) = found(OLD_VERSION, LintContext(release=NEW))

    assert (before.rule, before.level) == ("deprecated-version", "warning")
    assert "from Kubernetes 1.38 on not at all" in before.message
    assert (after.rule, after.level) == ("unknown-kind", "error")
    assert after.message == "an API server does not serve DeviceClass in resource.k8s.io/v1beta1"
    assert after.help == "write apiVersion: resource.k8s.io/v1"
    assert after.fix is not None


def test_the_oldest_release_on_which_all_works_is_named() -> None:
    assert oldest(PLAIN) == "the oldest release on which all of it works is Kubernetes 1.34"
    assert oldest(PLAIN, SHARED) == "the oldest release on which all of it works is Kubernetes 1.36"


def test_objects_that_need_a_gate_work_on_no_release_by_default() -> None:
    assert oldest(DERIVED).startswith("all of it works on no release of Kubernetes 1.34 to 1.38 with its default")


def test_releases_between_which_all_works_are_named_if_the_newest_is_not_one() -> None:
    objects = objects_on_releases([SourceFile("a.yaml", PLAIN)], RELEASES)
    broken = [type(each)(each.file, each.title, {**each.verdicts, NEW.version: "no"}) for each in objects]

    assert format_oldest(broken, RELEASES) == "all of it works only on Kubernetes 1.34 to 1.37"


def test_helm_templates_are_counted_as_not_checked() -> None:
    files = [SourceFile("a.yaml", PLAIN, explicit=False), SourceFile("b.yaml", "a: {{ .Values.b }}{{", explicit=False)]

    assert unrendered(files) == 1
    assert format_unrendered(1).startswith("1 Helm template is not checked: render the chart, as in 'helm template ")
    assert not format_unrendered(unrendered(files[:1]))


def test_files_that_the_user_has_named_are_not_read_again_for_templates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lint_releases, "read_documents", lambda file: pytest.fail(f"{file.name} is read"))
    assert unrendered([SourceFile("a.yaml", PLAIN), SourceFile("b.yaml", "{{ a }}")]) == 0


def test_the_table_has_the_objects_that_do_not_work_everywhere() -> None:
    files = [SourceFile("a.yaml", f"{PLAIN}---\n{SHARED.replace('lunch', 'dinner')}")]

    lines = list(format_releases(objects_on_releases(files, RELEASES), RELEASES))

    assert [line.split() for line in lines] == [
        ["works", "on", "Kubernetes", "1.34", "1.35", "1.36", "1.37", "1.38"],
        ["a.yaml", "ResourceClaim", "dinner", "drops", "drops", "yes", "yes", "yes"],
    ]


@pytest.mark.parametrize(
    ("minors", "text"),
    [
        ([34], "1.34"),
        ([34, 35], "1.34 and 1.35"),
        ([34, 35, 36], "1.34 to 1.36"),
        ([34, 36, 37], "1.34, 1.36 and 1.37"),
        ([34, 35, 36, 38], "1.34 to 1.36 and 1.38"),
    ],
)
def test_runs_of_releases_are_shortened(minors: list[int], text: str) -> None:
    assert named_releases([KubernetesVersion(1, minor) for minor in minors]) == text


NOWHERE = "all of it works on no release of Kubernetes 1.34 to 1.38 with its default feature gates"
JOBS = """
    apiVersion: jobs.example.com/v1
    kind: JobSet
    metadata: {name: train}
    spec:
      template:
        spec:
          containers: [{name: a, image: b}]
          resourceClaims: [{name: gpu, resourceClaimName: a}, {name: gpu, resourceClaimName: b}]
"""


@pytest.mark.parametrize(
    "wrong",
    [
        PLAIN.replace("resource.k8s.io/v1", "resource.k8s.io/v1alpha2"),
        PLAIN.replace("ResourceClaim", "Resourceclaim"),
        "kind: ResourceClaim\napiVersion: [",
        "a: 1\n",
        JOBS,
        pod("[{name: gpu, resourceClaimName: a}]", "[{name: other}]"),
        pod("[{name: gpu, resourceClaimName: a, resourceClaimTemplateName: b}]", "[{name: gpu}]"),
    ],
)
def test_what_is_wrong_or_cannot_be_read_works_on_no_release(wrong: str) -> None:
    assert oldest(PLAIN, wrong) == NOWHERE
    assert verdicts(wrong) == ["no"] * len(RELEASES)


def test_an_object_of_another_kind_does_not_count() -> None:
    assert oldest(PLAIN, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n").endswith("works is Kubernetes 1.34")


def test_a_template_does_not_count_as_checked() -> None:
    objects = objects_on_releases([SourceFile("a.yaml", PLAIN), SourceFile("b", "a: {{ .b }}{{", False)], RELEASES)

    assert format_oldest(objects, RELEASES, templates=1) == (
        "the oldest release on which all that was checked works is Kubernetes 1.34"
    )


DISTINCT = claim("deviceClassName: gpu\ncount: 2", extra="constraints: [{distinctAttribute: a/numa}]")
TOLERANT = claim("deviceClassName: gpu\ntolerations: [{key: a, operator: Exists, effect: NoSchedule}]")


STORED: Final = "an API server stores this field, but it has no effect: "


def test_a_field_that_is_stored_without_effect_does_not_work() -> None:
    (finding,) = found(TOLERANT, LintContext(release=OLD))

    assert verdicts(TOLERANT) == ["ignores", "drops", "yes", "yes", "yes"]
    assert oldest(TOLERANT).endswith("works is Kubernetes 1.36")
    assert (finding.rule, finding.level) == ("feature-gate", "warning")
    need = GATES["DRADeviceTaints"].need("DRADeviceTaints")
    assert finding.message == f"{STORED}exactly.tolerations needs Kubernetes {need}"
    assert finding.help.startswith("start the API server with --feature-gates=DRADeviceTaints=true, or upgrade")
    assert verdicts(TOLERANT, [Release.alpha(OLD.version)]) == ["yes"]


@pytest.mark.parametrize("release", [OLD, Release.alpha(OLD.version)], ids=["default", "alpha"])
def test_a_field_without_effect_in_a_release_with_its_gate_works_in_a_later_one(release: Release) -> None:
    (finding,) = found(DISTINCT, LintContext(release=release))

    assert verdicts(DISTINCT) == ["ignores", "no", "yes", "yes", "yes"]
    assert verdicts(DISTINCT, [Release.alpha(each) for each in SUPPORTED]) == ["ignores", "yes", "yes", "yes", "yes"]
    assert finding.message == (
        f"{STORED}constraints.distinctAttribute needs Kubernetes 1.35 with DRAConsumableCapacity; "
        "on by default since 1.36"
    )
    assert finding.help == (
        "upgrade the cluster to Kubernetes 1.35 or newer with --feature-gates=DRAConsumableCapacity=true"
    )


TAINT_RULE = """
    apiVersion: resource.k8s.io/v1
    kind: DeviceTaintRule
    metadata: {name: hot}
    spec:
      deviceSelector: {driver: gpu.example.com}
      taint: {key: hot, effect: NoSchedule}
"""


def test_releases_with_another_remedy_have_findings_of_their_own() -> None:
    told = "an API server does not serve DeviceTaintRule in resource.k8s.io/v1"

    assert [(finding.message, finding.help) for finding in compared(TAINT_RULE)] == [
        (f"in Kubernetes 1.34 and 1.35: {told}", "write apiVersion: resource.k8s.io/v1alpha3"),
        (f"in Kubernetes 1.36: {told}", "write apiVersion: resource.k8s.io/v1beta2"),
    ]


def test_releases_that_accept_other_values_have_findings_of_their_own() -> None:
    old, others = compared(TOLERANT.replace("effect: NoSchedule", "effect: Foo"))[-2:]

    assert old.releases == ("1.34",)
    assert '"None"' not in old.message
    assert others.releases == ("1.36", "1.37", "1.38")
    assert '"None"' in others.message


ALPHA = [Release.alpha(KubernetesVersion(1, minor)) for minor in range(35, 39)]


@pytest.mark.parametrize(
    ("version", "default", "alpha"),
    [
        ("v1", ["no", "no", "yes", "yes"], ["no", "no", "yes", "yes"]),
        ("v1beta2", ["no", "no", "no", "no"], ["no", "no", "no", "no"]),
        ("v1alpha3", ["no", "no", "no", "no"], ["yes", "yes", "yes", "yes"]),
    ],
)
def test_the_versions_that_alpha_serves_are_those_of_the_sandbox(
    version: str, default: list[str], alpha: list[str]
) -> None:
    text = TAINT_RULE.replace("resource.k8s.io/v1", f"resource.k8s.io/{version}")
    config = RuntimeConfig.parse(ALPHA_VERSIONS)
    served = [
        any(kind.kind == "DeviceTaintRule" and version in kind.types for kind in config.served(release))
        for release in ALPHA
    ]

    assert verdicts(text, RELEASES[1:]) == default
    assert verdicts(text, ALPHA) == alpha
    assert [verdict == "yes" for verdict in alpha] == served


def test_the_remedy_with_alpha_is_a_version_that_alpha_serves() -> None:
    surroundings = LintContext(release=Release.alpha(KubernetesVersion(1, 36)))
    (finding,) = found(TAINT_RULE, surroundings)

    assert finding.help == "write apiVersion: resource.k8s.io/v1alpha3"
    assert not found(TAINT_RULE.replace("resource.k8s.io/v1", "resource.k8s.io/v1alpha3"), surroundings)


def test_the_last_line_names_the_gates_that_were_used() -> None:
    text = TAINT_RULE.replace("resource.k8s.io/v1", "resource.k8s.io/v1beta2")

    assert oldest(text, releases=ALPHA) == (
        "all of it works on no release of Kubernetes 1.35 to 1.38 with the alpha features that it has"
    )


PLURALS = {"ResourceClaim": "namespaces/default/resourceclaims", "DeviceClass": "deviceclasses"}
SLICE = """
    apiVersion: resource.k8s.io/v1
    kind: ResourceSlice
    metadata: {name: s}
    spec:
      driver: gpu.example.com
      nodeName: node-1
      pool: {name: node-1, generation: 1, resourceSliceCount: 1}
      devices: [{name: gpu-0, BODY}]
"""
FRACTION = SLICE.replace(
    "BODY",
    "allowMultipleAllocations: true, capacity: {a: {value: '2', requestPolicy: "
    "{default: 500m, validRange: {min: 500m, step: 500m}}}}",
)
MAPPED = SLICE.replace(
    "BODY", "capacity: {m: {value: 1Gi}}, nodeAllocatableResourceMappings: {memory: {capacityKey: m}}"
)
ADMITTED = {
    "plain": PLAIN,
    "shared": SHARED,
    "derived": DERIVED,
    "distinct": claim(extra="constraints: [{distinctAttribute: gpu.example.com/id}]"),
    "extended name": device_class() + "  extendedResourceName: example.com/gpu\n",
    "removed version": OLD_VERSION,
    "lists": device_class('device.driver == "a" && device.attributes["a"].b.includes("c")'),
    "negative count": claim("deviceClassName: gpu\ncount: -1"),
    "taints": SLICE.replace("BODY", "taints: [{key: a, effect: NoSchedule}]"),
    "fraction": FRACTION,
    "mapped": MAPPED,
    "binding": SLICE.replace("BODY", "bindingConditions: [a], bindingFailureConditions: [b]"),
}


@pytest.mark.parametrize("release", RELEASES, ids=lambda release: str(release.version))
async def test_the_verdict_is_that_of_the_api_server_of_the_release(release: Release) -> None:
    """An object that works is stored as written, one with dropped fields without them, the others are not stored."""
    async with ApiServer(release=release) as server, aiohttp.ClientSession(server.url) as session:
        for name, text in ADMITTED.items():
            document = yaml.safe_load(textwrap.dedent(text))
            [judged] = objects_on_releases([SourceFile("a.yaml", textwrap.dedent(text))], [release])
            plural = PLURALS.get(document["kind"], "resourceslices")
            path = f"/apis/{document['apiVersion']}/{plural}?fieldValidation=Strict"
            async with session.post(path, json={**document, "metadata": {"generateName": "a-"}}) as answer:
                stored: dict[str, Any] = await answer.json(content_type=None) if answer.status == 201 else {}
            verdict = "no" if not stored else "yes" if _contains(stored["spec"], document["spec"]) else "drops"
            admitted = "yes" if (found := judged.verdicts[release.version]) == "ignores" else found
            assert (name, admitted) == (name, verdict)


def _contains(stored: Any, written: Any) -> bool:
    """Return whether a stored value has everything that was written, besides defaults."""
    if written in ([], {}):
        return not stored
    if isinstance(written, dict):
        return isinstance(stored, dict) and all(_contains(stored.get(key), each) for key, each in written.items())
    if isinstance(written, list):
        return isinstance(stored, list) and len(stored) == len(written) and all(map(_contains, stored, written))
    return bool(stored == written)


GROUPED = """
    apiVersion: v1
    kind: Pod
    metadata: {name: guest}
    spec:
      schedulingGroup: {podGroupName: table}
      containers: [{name: main, image: i}]
"""


def test_a_field_of_a_later_release_is_unknown_and_names_it() -> None:
    (old,) = found(GROUPED, LintContext(release=OLD))

    assert (old.rule, old.message) == ("unknown-field", "unknown field schedulingGroup")
    assert old.help == "it exists since Kubernetes 1.36; remove it, or upgrade the cluster"
    assert found(GROUPED, LintContext(release=NEW)) == []
    assert verdicts(GROUPED) == ["no", "no", "yes", "yes", "yes"]


LISTED = SLICE.replace("BODY", "attributes: {a: {strings: [b]}}")
CLASSED = TAINT_RULE.replace("/v1", "/v1alpha3").replace("driver: gpu.example.com", "deviceClassName: gpu")


@pytest.mark.parametrize(
    ("text", "answers", "alpha"),
    [
        (DERIVED, ["no", "no", "no", "drops", "drops"], ["no", "no", "no", "yes", "yes"]),
        (LISTED, ["no"] * 5, ["no", "no", "yes", "yes", "yes"]),
        (MAPPED, ["no", "no", "drops", "no", "no"], ["no", "no", "yes", "no", "no"]),
        (CLASSED, ["no"] * 5, ["yes", "no", "no", "no", "no"]),
    ],
    ids=["derived", "list", "only in 1.36", "only in 1.34"],
)
def test_a_field_is_known_to_the_releases_that_have_it(text: str, answers: list[str], alpha: list[str]) -> None:
    assert verdicts(text) == answers
    assert verdicts(text, [Release.alpha(release.version) for release in RELEASES]) == alpha


def unknown(text: str, release: Release) -> list[tuple[str, str]]:
    findings = found(text, LintContext(release=release))
    return [(one.message, one.help) for one in findings if one.rule == "unknown-field"]


def test_an_unknown_field_names_the_releases_that_have_it_and_its_gate() -> None:
    later = "it exists since Kubernetes 1.37; remove it, or upgrade the cluster with "

    assert unknown(DERIVED, OLD) == [
        ("unknown field derivedAttributes", f"{later}--feature-gates=DRADerivedAttributes=true")
    ]
    for release in (OLD, RELEASES[1], NEW):
        assert unknown(MAPPED, release) == [
            ("unknown field nodeAllocatableResourceMappings", "it exists in Kubernetes 1.36 only; remove it")
        ]
    assert unknown(CLASSED, RELEASES[1]) == [
        ("unknown field deviceClassName", "it exists in Kubernetes 1.34 only; remove it")
    ]


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
def test_an_attribute_with_an_unknown_field_is_one_problem(version: str) -> None:
    text = LISTED if version == "v1" else LISTED.replace("/v1", "/v1beta1").replace("attributes", "basic: {attributes")
    text = text if version == "v1" else text.replace("}}}", "}}}}")
    findings = found(text, LintContext(release=OLD))

    assert [one.rule for one in findings if one.level == "error"] == ["unknown-field"]


def test_what_is_known_instead_of_an_unknown_field_is_what_the_release_has() -> None:
    misspelt = DERIVED.replace("derivedAttributes", "derivedAttribute")
    (old,) = (one for one in found(misspelt, LintContext(release=OLD)) if one.rule == "unknown-field")
    (new,) = (one for one in found(misspelt, LintContext(release=NEW)) if one.rule == "unknown-field")

    assert "derivedAttributes" not in old.help
    assert "derivedAttributes" in new.help
