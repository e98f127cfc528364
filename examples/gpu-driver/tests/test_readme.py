"""The table of use cases says what the stories say."""

import re
from pathlib import Path

from gpu_driver.settings import Settings

PROJECT = Path(__file__).parents[1]
_ROW = re.compile(r"^\| \[\d+\]\(stories/(\S+)\) \|(.*)\|$", re.MULTILINE)
_COMMAND = re.compile(r"^\$ dra-kit sandbox .*--fake-gpus \S+(.*)$", re.MULTILINE)

ROWS = dict(_ROW.findall((PROJECT / "README.md").read_text(encoding="utf-8")))
STORIES = {
    path.parent.name: path.with_name("README.md").read_text(encoding="utf-8")
    for path in sorted(PROJECT.glob("stories/*/expect.yaml"))
}


def test_each_story_has_a_row_with_its_test() -> None:
    assert list(ROWS) == list(STORIES)
    assert all(f"`test_a_use_case[{name}]`" in row for name, row in ROWS.items())


def test_feature_gates_match_the_story() -> None:
    for name, row in ROWS.items():
        [_, _, _, gates, _] = row.split("|")
        assert set(re.findall(r"DRA\w+", gates)) == set(re.findall(r"DRA\w+", STORIES[name])), name


def test_settings_match_the_command() -> None:
    for name, row in ROWS.items():
        [_, ours, *_] = row.split("|")
        listed = {word for word in re.findall(r"`(\w+)`", ours) if word in Settings.model_fields}
        [flags] = _COMMAND.findall(STORIES[name])
        assert listed == {flag.replace("-", "_") for flag in re.findall(r"--(\S+)", flags)}, name
