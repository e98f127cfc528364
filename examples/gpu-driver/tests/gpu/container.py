"""A container of this machine's files without NVIDIA's, and of what CDI adds: does a program find its GPU there?

It is a root directory in a mount namespace of its own (``unshare``), for root alone. Its files are those of the
machine, changes go into memory. ``python container.py`` is what runs inside of the namespace.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dra_kit.testing import ContainerFacts

from gpu_driver.host.driver_root import behind

LIBRARIES = "/usr/local/nvidia/lib64"
"""Where images for GPUs look, by ``LD_LIBRARY_PATH``, as those of ``nvidia/cuda`` do."""
_NODES = ("null", "zero", "full", "random", "urandom", "tty")
_PROGRAMS = (
    "nvidia-smi",
    "nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server",
    "nvidia-debugdump",
    "nvidia-persistenced",
)


def start(got: ContainerFacts, *command: str, visible: Sequence[str] = ()) -> "subprocess.Popen[str]":
    """Start a program in such a container; its input, output and errors are pipes.

    Args:
        got: what a container of a pod gets.
        command: of the program.
        visible: folders that it needs, wherever they are on this machine.
    """
    wished = {
        "environment": dict(got.environment),
        "device_nodes": dict(got.device_nodes or {}),
        "mounts": dict(got.mounts or {}),
        "visible": [sys.prefix, sys.base_prefix, str(Path(__file__).parent), *visible],
        "command": command,
    }
    return subprocess.Popen(
        ["unshare", "--mount", "--propagation", "private", sys.executable, __file__, json.dumps(wished)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(got: ContainerFacts, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a program in such a container, and wait until it ends."""
    with start(got, *command) as process:
        try:
            output, errors = process.communicate(timeout=120)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    return subprocess.CompletedProcess(command, process.returncode, output, errors)


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True)


def _put(source: str, root: Path, path: str) -> None:
    """Mount a file or folder of the machine in the container; links such as ``/var/run`` stay in the container."""
    target = behind(root / path[1:], root)
    if Path(source).is_dir():
        target.mkdir(parents=True, exist_ok=True)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        target.touch()
    _mount("--rbind", source, str(target))


def _of_nvidia(root: Path) -> Iterator[Path]:
    """What of the driver is in the machine's own folders."""
    for folder in ("usr/lib", "usr/lib64", "usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", LIBRARIES[1:]):
        for pattern in ("libcuda.so*", "libnvidia-*", "libnvcuvid*"):
            yield from (root / folder).glob(pattern)
    for folder in ("usr/bin", "usr/sbin", "usr/local/nvidia/bin"):
        yield from (root / folder / name for name in _PROGRAMS)


def _make(wished: Mapping[str, Any]) -> Path:
    memory = Path("/mnt")  # in this namespace alone
    _mount("-t", "tmpfs", "none", str(memory))
    root, changes, work = memory / "root", memory / "changes", memory / "work"
    for folder in (root, changes, work):
        folder.mkdir()
    _mount("-t", "overlay", "-o", f"lowerdir=/,upperdir={changes},workdir={work}", "none", str(root))
    for path in _of_nvidia(root):
        path.unlink(missing_ok=True)
    for name in ("dev", "tmp", "run"):
        _mount("-t", "tmpfs", "none", str(root / name))
    for path in wished["visible"]:
        if not (root / path[1:]).exists():  # on a disk of its own, or in a folder that the container has empty
            _put(path, root, path)
    _mount("--rbind", "/proc", str(root / "proc"))
    for name in _NODES:
        number = os.stat(f"/dev/{name}").st_rdev
        _node(root / "dev" / name, os.major(number), os.minor(number))
    (root / "dev/shm").mkdir()
    for path, text in wished["device_nodes"].items():
        _, _, numbers = text.partition(" ")
        major, minor = map(int, numbers.split(":"))
        _node(root / path[1:], major, minor)
    for path, source in sorted(wished["mounts"].items()):
        _put(source, root, path)
    return root


def _node(path: Path, major: int, minor: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mknod(path, 0o020666, os.makedev(major, minor))
    path.chmod(0o666)


def main() -> None:
    """Become the program, in the container; what it is made of is the argument."""
    wished = json.loads(sys.argv[1])
    os.chroot(_make(wished))
    os.chdir("/")
    environment = {**wished["environment"], "PATH": f"/usr/local/nvidia/bin:{os.defpath}", "LD_LIBRARY_PATH": LIBRARIES}
    command: list[str] = wished["command"]
    found = shutil.which(command[0], path=environment["PATH"])
    if found is None:
        sys.exit(f"{command[0]} is not in the container")
    os.execve(found, command, environment)


if __name__ == "__main__":
    main()
