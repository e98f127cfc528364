"""``python -m tests.scaffold.first_hour``: from nothing but the wheel to a pod with a device, timed, as a transcript.

The way is that of docs/tutorial/first-driver.md, edits and all; docs/tutorial/first-hour.md shows what came of it. The
image and what follows need a real cluster (CONTRIBUTING.md says which); without one the transcript says so and ends
before.
"""

from __future__ import annotations

import difflib
import json
import resource
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from dra_kit.project.rendering import BASE, read_answers
from tests.cluster.find import NotFound, find
from tests.cluster.image import CannotBuild, fill_wheelhouse, make_base_image
from tests.cluster.new_project import NewProject, demonstrated
from tests.cluster.plane import Plane, start
from tests.scaffold.environment import Environment, build_wheel, make_environment
from tests.scaffold.tutorial import TESTS, add_tests, edits

NAME = "led-driver"
SHOWN = 14
"""Lines of a command's output, the first and the last ones."""
GIVEN = "gets from its claims"
"""The first line of the sandbox's output that matters to an author."""


class Transcript:
    """Prints each step, and how long the commands took."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.processor = 0.0

    def title(self, text: str) -> None:
        print(f"\n# {text}", flush=True)

    def run(self, command: str, work: Callable[[], str], *, since: str = "") -> None:
        """A command: when it began, its words, its output from some words on, how long it took."""
        print(f"{self.clock()} $ {command}", flush=True)
        began, used = time.monotonic(), processor_seconds()
        output = work().splitlines()
        took, used = time.monotonic() - began, processor_seconds() - used
        self.seconds += took
        self.processor += used
        first = next((number for number, line in enumerate(output) if since in line), 0)
        if first:
            output[:first] = [f"… {first} lines"]
        cut = len(output) - SHOWN
        if cut > 1:
            output[SHOWN // 2 : -(SHOWN // 2)] = [f"… {cut} lines"]
        for line in output:
            print(f"        {line[:150]}")
        print(f"        ({took:.0f} s, {used:.0f} of a processor)", flush=True)

    def edit(self, file: Path, diff: str) -> None:
        print(f"{self.clock()} edit {file}")
        for line in diff.splitlines():
            print(f"        {line}")

    def clock(self) -> str:
        return f"[{int(self.seconds) // 60:2}:{int(self.seconds) % 60:02}]"


def processor_seconds() -> float:
    """What all commands have used; on a busy machine they take longer, and use as much."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def develop(told: Transcript, directory: Path) -> tuple[Environment, Path]:
    """Until the driver is tested."""
    wheel = build_wheel(directory)
    environment = make_environment(directory)
    project = directory / NAME

    def run(*words: object, cwd: Path = project) -> str:
        return environment.run(*words, cwd=cwd)

    told.title("an empty environment, and the wheel")
    pip = [environment.python, "-m", "pip", "install", "--quiet", wheel]
    told.run(f"pip install {wheel.name}", lambda: run(*pip, cwd=directory))
    told.run(f"dra-kit new {NAME} --defaults", lambda: run("dra-kit", "new", NAME, "--defaults", cwd=directory))
    told.run("make sandbox", lambda: run("make", "--silent", "sandbox"), since=GIVEN)
    told.title("an attribute, a field of the config, what the container gets of it")
    for edit in edits():
        edit.make(project)
        told.edit(edit.file, edit.diff)
    told.title("a test")
    told.edit(TESTS, add_tests(project))
    told.run("make test lint", lambda: run("make", "--silent", "test", "lint"))
    sandbox = ["dra-kit", "sandbox", ".", "-f", "demo/pod.yaml"]
    told.run(" ".join(sandbox), lambda: run(*sandbox), since=GIVEN)
    return environment, project


def deploy(told: Transcript, plane: Plane, environment: Environment, folder: Path) -> None:
    """The image, helm and a pod; buildah stands for Docker, and the image's wheels are there.

    Raises:
        NotFound: the cluster has no node.
        CannotBuild: no image can be built here.
    """
    if plane.node is None:
        raise NotFound(f"a node is needed; found {plane.why}")
    answers, _ = read_answers(folder)
    project = NewProject(plane, answers, folder, environment.folder)
    wheels = folder.parent / "wheels"
    make_base_image(find())
    fill_wheelhouse(wheels)

    def image() -> str:
        project.image(find(), wheels)
        return ""

    told.title("in a real cluster")
    told.run("make image, and into the cluster", image)
    with ExitStack() as stack:
        demo = demonstrated(project)
        told.run("make kind-demo", lambda: stack.enter_context(demo), since="condition met")


def touched(project: Path) -> list[str]:
    """Files that differ from what the template made, with the lines that were added and removed."""
    lines = []
    for name, before in json.loads((project / BASE).read_text()).items():
        after = (project / name).read_text()
        diff = [line[0] for line in difflib.ndiff(before.splitlines(), after.splitlines())]
        if before != after:
            lines.append(f"{name:32} +{diff.count('+')} -{diff.count('-')}")
    return lines


def main() -> None:
    told = Transcript()
    with tempfile.TemporaryDirectory(prefix="first-hour-") as directory:
        environment, project = develop(told, Path(directory))
        told.title(f"a driver of one's own, tested, in a sandbox: {told.clock().strip('[] ')} minutes of commands")
        try:
            with start(find()) as plane:
                deploy(told, plane, environment, project)
        except (NotFound, CannotBuild) as error:
            print(f"\nNOT SHOWN: image, helm and pod: {error}")
        told.title(f"files touched, {told.clock().strip('[] ')} minutes in all, {told.processor:.0f} s of a processor")
        print("\n".join(touched(project)))


if __name__ == "__main__":
    main()
