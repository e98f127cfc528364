"""Build public drivers from their sources, judge each by conformance checks, and write the reports.

``python -m tests.upstream SOURCES --reports FOLDER``: SOURCES has a checkout of each driver, by the repository's name.
Exit code 0: every driver that was found is judged, whatever the verdict; 1: one cannot be built or started; 2: Go or
all sources are missing.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple

HERE: Final = Path(__file__).parent
GO: Final = "/usr/local/go/bin"
"""Where Go is if it is not on the PATH."""


class UpstreamDriver(NamedTuple):
    """How a driver is built and started; ``{binary}`` is what was built."""

    package: str
    command: str
    profile: str


DRIVERS: Final = {
    "dra-example-driver": UpstreamDriver(
        "./cmd/dra-example-kubeletplugin",
        "{binary} --node-name {node} --kubeconfig {kubeconfig} --cdi-root {cdi} --pod-uid={pod_uid} --num-devices 4 "
        "--kubelet-plugins-directory-path {plugins} --kubelet-registrar-directory-path {registry}",
        "dra-example-driver.yaml",
    ),
}


def built(source: Path, driver: UpstreamDriver, folder: Path) -> Path | None:
    binary = folder / source.name
    environment = {**os.environ, "PATH": f"{os.environ['PATH']}:{GO}"}
    words = ["go", "build", "-o", str(binary), driver.package]
    done = subprocess.run(words, cwd=source, env=environment, check=False)
    return binary if done.returncode == 0 else None


def judged(name: str, driver: UpstreamDriver, binary: Path, reports: Path) -> bool:
    report = reports / f"{name}.json"
    report.unlink(missing_ok=True)
    words = [
        sys.executable, "-m", "dra_kit", "conformance", "--command", driver.command.replace("{binary}", str(binary)),
        "--profile", str(HERE / driver.profile), "--json", str(report), "--html", str(reports / f"{name}.html"),
    ]  # fmt: skip
    subprocess.run(words, check=False)
    found = json.loads(report.read_text(encoding="utf-8")) if report.exists() else {}
    return bool(found.get("driver"))  # it has registered


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.upstream", description=__doc__)
    parser.add_argument("sources", type=Path)
    parser.add_argument("--reports", type=Path, required=True)
    given = parser.parse_args()
    found = {name: given.sources / name for name in DRIVERS if (given.sources / name / "go.mod").is_file()}
    if not found:
        print(f"no sources in {given.sources}; clone {' or '.join(DRIVERS)} there", file=sys.stderr)
        return 2
    if shutil.which("go", path=f"{os.environ['PATH']}:{GO}") is None:
        print("go is not on the PATH; install Go", file=sys.stderr)
        return 2
    given.reports.mkdir(parents=True, exist_ok=True)
    complete = True
    with TemporaryDirectory(prefix="dra-") as folder:
        for name, source in found.items():
            print(f"== {name}", flush=True)
            binary = built(source, DRIVERS[name], Path(folder))
            complete = binary is not None and judged(name, DRIVERS[name], binary, given.reports) and complete
    return 0 if complete else 1


if __name__ == "__main__":
    sys.exit(main())
