"""One wheel and one environment for the whole run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scaffold.environment import Environment, build_wheel, make_environment

TIMEOUT_SECONDS = 600


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/scaffold/" in item.path.as_posix():
            item.add_marker(pytest.mark.timeout(TIMEOUT_SECONDS))


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of the sources as they are."""
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """With the wheel, and nothing else."""
    folder = tmp_path_factory.mktemp("environment")
    made = make_environment(folder)
    made.run(made.python, "-m", "pip", "install", "--quiet", wheel, cwd=folder)
    return made
