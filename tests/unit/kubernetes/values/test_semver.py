from __future__ import annotations

import copy
import pickle
from functools import cmp_to_key
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from dra_kit.kubernetes.values.semver import Version

numbers = st.integers(0, 30)
words = st.text("0a-Z", min_size=1, max_size=4).filter(lambda word: not word.isdigit())
identifiers = st.one_of(numbers.map(str), words)
prereleases = st.lists(identifiers, max_size=3)
builds = st.lists(st.text("09aZ-", min_size=1, max_size=3), max_size=2)
releases = st.builds("{}.{}.{}".format, numbers, numbers, numbers)


def text_of(release: str, prerelease: list[str], build: list[str]) -> str:
    return release + (f"-{'.'.join(prerelease)}" if prerelease else "") + (f"+{'.'.join(build)}" if build else "")


versions = st.builds(text_of, releases, prereleases, builds).map(Version)


def test_version_parts() -> None:
    version = Version("1.20.3-rc.1+b7.x")

    assert (version.major, version.minor, version.patch) == (1, 20, 3)
    assert version.prerelease == ("rc", "1")
    assert version.build == ("b7", "x")


@given(versions)
def test_str_is_original_text(version: Version) -> None:
    assert str(Version(str(version))) == str(version)
    assert Version(str(version)) == version
    assert hash(Version(str(version))) == hash(version)


@pytest.mark.parametrize(
    "text",
    [
        "", "1", "1.2", "v1.2.3", "01.2.3", "1.02.3", "1.2.03", "1.2.3.4", "-1.2.3", " 1.2.3", "1.2.3\n", "1.2.3-",
        "1.2.3+", "1.2.3-a..b", "1.2.3-01", "1.2.3-a_b", "1.2.3+a+b", "1.2.3-é", "1.2.٣", "a.b.c", "1.2.3-.", "1.2.3+.",
    ],
)  # fmt: skip
def test_invalid_version_error_is_one_line(text: str) -> None:
    with pytest.raises(ValueError, match="is not a semantic version") as caught:
        Version(text)

    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["0.0.0", "1.2.3-0a", "1.2.3-0", "1.2.3--", "1.2.3+01", "99999999999999999999.0.0"])
def test_unusual_valid_versions_are_accepted(text: str) -> None:
    assert str(Version(text)) == text


@pytest.mark.parametrize("text", [f"{'9' * 4400}.0.0", f"0.0.{'9' * 4400}", f"1.0.0-rc.{'9' * 4400}"])
def test_very_long_number_error_is_short(text: str) -> None:
    with pytest.raises(ValueError, match="is not a semantic version: a number is out of range") as caught:
        Version(text)

    assert len(str(caught.value)) < 150


def test_other_types_are_not_versions() -> None:
    with pytest.raises(ValueError, match="not float"):
        Version(1.2)  # type: ignore[arg-type]


# the example of semver.org, item 11
def test_precedence_of_prereleases() -> None:
    chain = ["1.0.0-alpha", "1.0.0-alpha.1", "1.0.0-alpha.beta", "1.0.0-beta", "1.0.0-beta.2", "1.0.0-beta.11",
             "1.0.0-rc.1", "1.0.0", "2.0.0", "2.1.0", "2.1.1", "2.10.0"]  # fmt: skip

    for lower, higher in pairwise(map(Version, chain)):
        assert lower.compare(higher) == -1
        assert higher.compare(lower) == 1


@given(st.lists(numbers, min_size=3, max_size=3), st.lists(numbers, min_size=3, max_size=3))
def test_releases_are_ordered_number_by_number(a: list[int], b: list[int]) -> None:
    left, right = (Version(".".join(map(str, parts))) for parts in (a, b))

    assert left.compare(right) == (a > b) - (a < b)


@given(versions, builds)
def test_precedence_ignores_build_metadata(version: Version, build: list[str]) -> None:
    other = Version(text_of(str(version).split("+", 1)[0], [], build))

    assert version.compare(other) == 0


@given(releases, prereleases.filter(bool))
def test_prerelease_precedes_release(release: str, prerelease: list[str]) -> None:
    assert Version(text_of(release, prerelease, [])).compare(Version(release)) == -1


@given(releases, prereleases.filter(bool), identifiers)
def test_more_identifiers_have_higher_precedence(release: str, prerelease: list[str], more: str) -> None:
    longer = Version(text_of(release, [*prerelease, more], []))

    assert Version(text_of(release, prerelease, [])).compare(longer) == -1


@given(releases, prereleases, numbers, words)
def test_numeric_identifiers_precede_words(release: str, prefix: list[str], number: int, word: str) -> None:
    numeric = Version(text_of(release, [*prefix, str(number)], []))

    assert numeric.compare(Version(text_of(release, [*prefix, word], []))) == -1


@given(versions, versions)
def test_comparison_is_antisymmetric(a: Version, b: Version) -> None:
    assert a.compare(b) == -b.compare(a)


@given(versions, versions, versions)
def test_comparison_is_transitive(a: Version, b: Version, c: Version) -> None:
    low, middle, high = sorted([a, b, c], key=cmp_to_key(Version.compare))

    assert low.compare(middle) <= 0
    assert middle.compare(high) <= 0
    assert low.compare(high) <= 0


def test_equality_compares_text() -> None:
    assert Version("1.0.0+a") != Version("1.0.0+b")
    assert Version("1.0.0") != "1.0.0"


def test_version_has_no_order_operators() -> None:
    with pytest.raises(TypeError):
        Version("1.0.0") < Version("2.0.0")  # type: ignore[operator]  # noqa: B015


def test_value_is_immutable() -> None:
    with pytest.raises(AttributeError):
        Version("1.0.0").major = 2  # type: ignore[misc]


def test_copies_and_pickles_are_equal() -> None:
    version = Version("1.2.3-rc.1+b7")

    assert copy.deepcopy(version) == version
    assert pickle.loads(pickle.dumps(version)) == version  # noqa: S301


class Firmware(BaseModel):
    version: Version


def test_model_round_trips_text() -> None:
    firmware = Firmware.model_validate_json('{"version": "1.2.3"}')

    assert firmware.version == Version("1.2.3")
    assert firmware.model_dump() == {"version": "1.2.3"}
    assert Firmware.model_json_schema()["properties"]["version"]["type"] == "string"


@pytest.mark.parametrize("document", ['"1.2"', "1", "null"])
def test_model_rejects_invalid_version(document: str) -> None:
    with pytest.raises(ValidationError):
        Firmware.model_validate_json(f'{{"version": {document}}}')
