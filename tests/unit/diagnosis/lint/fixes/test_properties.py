"""For any file, fixes change only the findings' values, and only once."""

from __future__ import annotations

import json
import random
import re
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dra_kit.diagnosis.lint.check import FixedFiles, check, fix_files
from dra_kit.diagnosis.lint.devices import LintContext
from dra_kit.diagnosis.lint.findings import LintFinding
from dra_kit.kubernetes.manifests.documents import SourceFile, parse_documents
from dra_kit.kubernetes.release import UNMODIFIED
from dra_kit.kubernetes.resource.conversion import to_v1
from tests.unit.diagnosis.lint.texts import SURROUNDINGS

EXPRESSIONS = st.sampled_from([
    "true", 'device.driver == "gpu.example.com"', 'device.driver = "gpu.example.com" and True',
    'device.capacity["memory"] >= "80Gi"', 'device.attributes["gpu.example.com/model"].startswith("H") == True',
    "device.driver == 'gpu.example.com' && device.capacity['memory'].isLessThan('80Gi')",
    'device.attributes["gpu.example.com"].modle == "it\'s"', 'device.attributes["gpu.exmaple.com"].cores == "132"',
    'device.driver == "gpu.example.com" && (device.capacity["gpu.example.com"].memory).sign() = 1', "driver == 1 and",
    '(device.capacity["gpu.example.com"].a > "1Gi") == (device.capacity["gpu.example.com"].b < quantity("2Gi"))',
])  # fmt: skip
REQUESTS = st.fixed_dictionaries(
    {"deviceClassName": st.sampled_from(["gpu", "yes", "a.b"])},
    optional={
        "count": st.sampled_from([1, 2, "3", "many"]),
        "allocationMode": st.sampled_from(["All", "all", "ExactCount"]),
        "selectors": st.lists(EXPRESSIONS.map(lambda text: {"cel": {"expression": text}}), max_size=3),
        "adminAccess": st.sampled_from([False, "false"]),
        "tolerations": st.sampled_from([{"key": "a", "operator": "exists"}, [{"key": "a", "operator": "Exists"}]]),
    },
)
SLIPS = st.lists(st.sampled_from(["deviceClassName", "count", "selectors", "cel", "requests", "metadata"]), max_size=2)


def scalar(value: Any, rnd: random.Random, *, key: bool = False) -> str:
    if not isinstance(value, str):
        return json.dumps(value)
    if re.fullmatch(r"[a-zA-Z][\w./-]*", value) and value not in {"yes", "true", "false"} and rnd.random() < 0.7:
        return value
    styles = [json.dumps(value), "'" + value.replace("'", "''") + "'"]
    return rnd.choice(styles[:1] if key else styles)


def flow(value: Any, rnd: random.Random) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{scalar(key, rnd, key=True)}: {flow(item, rnd)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(flow(item, rnd) for item in value) + "]"
    return scalar(value, rnd)


def comment(rnd: random.Random, before: str = "") -> list[str]:
    return [f"{before}# {rnd.randrange(10**9)}: {{a}}"] if rnd.random() < 0.2 else []


def lines(value: Any, rnd: random.Random, step: int) -> list[str]:
    """YAML in some way in which people write it."""
    made: list[str] = []
    if isinstance(value, list):
        for item in value:
            first, *others = lines(item, rnd, step) if isinstance(item, dict) and item else [flow(item, rnd)]
            made += [f"- {first}", *(f"  {line}" if line else line for line in others)]
        return made
    for key, item in value.items():
        made += comment(rnd)
        name = scalar(key, rnd, key=True)
        if isinstance(item, str) and " " in item and rnd.random() < 0.5:
            made += [f"{name}: {rnd.choice(['|', '|-', '>-'])}", " " * step + item]
        elif not isinstance(item, dict | list) or not item or rnd.random() < 0.3:
            made.append("".join([f"{name}: {flow(item, rnd)}", *comment(rnd, "  ")]))
        else:
            inner = lines(item, rnd, step)
            made.append("".join([f"{name}:", *comment(rnd, " ")]))
            by = rnd.choice([0, step]) if isinstance(item, list) else step
            made += [" " * by + line if line else line for line in inner]
        made += [""] if rnd.random() < 0.05 else []
    return made


def text(body: Any, rnd: random.Random) -> str:
    if rnd.random() < 0.15:
        return json.dumps(body, indent=rnd.choice([None, 2, "\t"]))
    end = rnd.choice(["\n", "\n", "\r\n"])
    return end.join([*lines(body, rnd, rnd.choice([2, 2, 4])), *rnd.choice([[], [""]])])


def shuffled(value: Any, rnd: random.Random) -> Any:
    if isinstance(value, dict):
        keys = list(value)
        rnd.shuffle(keys)
        return {key: shuffled(value[key], rnd) for key in keys}
    return [shuffled(item, rnd) for item in value] if isinstance(value, list) else value


def claim(requests: list[dict[str, Any]], version: str, *, flat: bool) -> dict[str, Any]:
    written = [
        {"name": f"r{i}", **one} if flat else {"name": f"r{i}", "exactly": one} for i, one in enumerate(requests)
    ]
    return {
        "apiVersion": f"resource.k8s.io/{version}",
        "kind": "ResourceClaim",
        "metadata": {"name": "lunch", "labels": {"a": "b"}},
        "spec": {"devices": {"requests": written}},
    }


def slipped(value: Any, keys: list[str], rnd: random.Random) -> Any:
    if isinstance(value, list):
        return [slipped(item, keys, rnd) for item in value]
    if not isinstance(value, dict):
        return value
    made = {}
    for key, item in value.items():
        at = rnd.randrange(1, len(key) + 1)
        name = key[: at - 1] + key[at:] if key in keys and rnd.random() < 0.7 else key
        made[name] = slipped(item, keys, rnd)
    return made


def written(texts: list[str], known: LintContext) -> FixedFiles:
    return fix_files([SourceFile("a.yaml", "\n---\n".join(texts))], known)


def values(file: SourceFile) -> list[Any]:
    return [document.value for document in parse_documents(file.text)]


def comments(file: SourceFile) -> list[str]:
    return sorted(re.findall(r"# \d+: \{a\}", file.text))


def places(finding: LintFinding) -> tuple[str, str]:
    return finding.rule, finding.path


def differ(one: Any, other: Any, path: str = "") -> list[str]:
    """Paths of what is in one value and not in the other."""
    if isinstance(one, dict) and isinstance(other, dict):
        below = [(key, f"{path}.{key}" if path else key) for key in {*one, *other}]
        return [
            each
            for key, where in below
            for each in (differ(one[key], other[key], where) if key in one and key in other else [where])
        ]
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return [each for i, pair in enumerate(zip(one, other, strict=True)) for each in differ(*pair, f"{path}[{i}]")]
    return [] if json.dumps(one) == json.dumps(other) else [path]


@given(
    body=st.builds(
        claim,
        st.lists(REQUESTS, min_size=1, max_size=3),
        st.sampled_from(["v1", "v1", "v1beta1", "v1beta2"]),
        flat=st.booleans(),
    ),
    slips=SLIPS,
    known=st.sampled_from(SURROUNDINGS),
    rnd=st.randoms(use_true_random=False),
)
def test_fixes_are_complete_and_idempotent_and_match_their_findings(
    body: dict[str, Any], slips: list[str], known: LintContext, rnd: random.Random
) -> None:
    before = SourceFile("a.yaml", text(shuffled(slipped(body, slips, rnd), rnd), rnd))
    made = fix_files([before], known)
    (after,) = made.files

    assert fix_files([after], known).files == [after]
    assert fix_files([after], known).fixed == []
    assert comments(after) == comments(before)
    if not made.fixed:
        assert after == before

    # the changed field has a finding, or is next to one
    about = [finding.path for finding in made.fixed]
    holders = {re.sub(r"(\.exactly)?\.?[^.]*$", "", path) for path in about if path != "apiVersion"}
    for path in differ(values(before)[0], values(after)[0]):
        moved = "apiVersion" in about and ".requests[" in path
        assert moved or path in about or any(path.startswith(holder) for holder in holders)

    # a finding that is new was hidden behind one that is fixed: in the same expression, or below the same object
    old = {places(finding) for finding in check([before], known).findings}
    for finding in check([after], known).findings:
        if places(finding) not in old:
            assert any(finding.path.startswith(holder) for holder in holders) or "apiVersion" in about


BETA = REQUESTS.filter(
    lambda one: isinstance(one.get("count", 1), int) and not isinstance(one.get("tolerations"), dict)
)


@given(requests=st.lists(BETA, min_size=1, max_size=3), rnd=st.randoms(use_true_random=False))
def test_an_object_of_v1beta1_becomes_that_of_v1(requests: list[dict[str, Any]], rnd: random.Random) -> None:
    plain = [
        {key: value for key, value in one.items() if key not in {"selectors", "adminAccess", "allocationMode"}}
        for one in requests
    ]
    body = claim(plain, "v1beta1", flat=True)
    before = SourceFile("a.yaml", text(shuffled(body, rnd), rnd))
    (after,) = fix_files([before], LintContext(UNMODIFIED)).files
    expected = {**to_v1(body, "ResourceClaim", body["apiVersion"]), "apiVersion": "resource.k8s.io/v1"}
    assert differ(values(after)[0], expected) == []
    assert comments(after) == comments(before)


@given(
    start=st.text(st.sampled_from("abk: -\n[]{}&*!|>'\"%@`#,?\t\x00\x85\u2028é"), max_size=40),
    known=st.sampled_from(SURROUNDINGS),
)
def test_any_text_is_handled(start: str, known: LintContext) -> None:
    body = f"apiVersion: v1beta1\nkind: ResourceClaim\nspec: {{deviceClassName: 1}}\ncount: {start}\n"
    made = written([body], known)
    assert fix_files(made.files, known).files == made.files


CLAIMS = st.builds(
    claim, st.lists(REQUESTS, min_size=1, max_size=2), st.sampled_from(["v1", "v1beta1"]), flat=st.booleans()
)


@given(bodies=st.lists(CLAIMS, min_size=2, max_size=3), rnd=st.randoms(use_true_random=False))
def test_documents_of_one_file_are_fixed_independently(bodies: list[dict[str, Any]], rnd: random.Random) -> None:
    texts = ["\n".join([*lines(shuffled(body, rnd), rnd, 2), ""]) for body in bodies]
    alone = [fix_files([SourceFile("a.yaml", text)], LintContext(UNMODIFIED)).files[0].text for text in texts]
    assert fix_files([SourceFile("a.yaml", "---\n".join(texts))], LintContext(UNMODIFIED)).files[
        0
    ].text == "---\n".join(alone)
