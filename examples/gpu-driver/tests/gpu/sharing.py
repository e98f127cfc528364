"""``make bench-gpu``: what each way of sharing a GPU costs, in containers of claims of the sandbox.

It changes no setting of a GPU. Where there is none, claims get fake GPUs: starts are measured, and the output says why
kernels are not.
"""

import argparse
import json
import math
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import dra_kit as dra
from dra_kit.testing import ContainerFacts, Harness, PodFacts, TestBed, sandbox

from gpu_driver.nvml.fake.profile import load
from tests.gpu import container, kernels, nvidia_smi
from tests.gpu.claims import ROOT, cuda_folder, objects, obstacle

FAKE = "h100"
"""Profile of the fake GPUs."""
SIZES = ("large", "small")
HERE = Path(__file__).parent
_LOOK = 0.002
"""Seconds between two looks at a pod: the resolution of the starts."""
_COME_UP = 90.0
"""Seconds in which the clients of a claim are done; with PyTorch they load gigabytes of libraries first."""
_ENGINES = {
    "torch": "bf16 products by PyTorch: large 4 of 8192² for each synchronisation, small 8 of 512²",
    "own": "fp32 multiply-adds of this benchmark: large 2 kernels that fill the GPU for each synchronisation, small 8 "
    "of 16 blocks",
}
_NO_TORCH = (
    "Compare these figures with one another only, not with those of PyTorch. To measure as in docs/sharing.md, "
    "install PyTorch (pip install torch) and set TORCH_PYTHON to the path of its Python."
)


@dataclass(frozen=True)
class Way:
    """A way of sharing: how many containers share one claim, and the ``sharing`` of the claim's config."""

    title: str
    clients: int
    sharing: dict[str, Any] | None = None
    container: bool = True


def _mps(percentage: int) -> dict[str, Any]:
    return {"strategy": "MPS", "mpsConfig": {"defaultActiveThreadPercentage": percentage}}


PLAIN, MPS = Way("a plain claim", 1), Way("a claim with MPS", 1, {"strategy": "MPS"})
WAYS = (
    Way("1, no container", 1, container=False),
    Way("1, whole device", 1),
    Way("2, time-slicing", 2),
    Way("4, time-slicing", 4),
    Way("1, MPS", 1, MPS.sharing),
    Way("2, MPS", 2, MPS.sharing),
    Way("4, MPS", 4, MPS.sharing),
    Way("2, MPS, 50 % of the multiprocessors each", 2, _mps(50)),
    Way("4, MPS, 25 % each", 4, _mps(25)),
)
"""The rows of the table. Containers of a claim without ``sharing`` take turns, with the GPU's own time slice."""


@dataclass(frozen=True)
class Figures:
    """Of all clients of a claim: the sum of what they did at once, and of each synchronisation the time in ms."""

    tflops: float
    p50_ms: float
    p99_ms: float


@dataclass(frozen=True)
class Row:
    """What one way of sharing gave.

    Attributes:
        served: how many clients got the GPU of their claim, and with MPS the sockets of their daemon.
        figures: by the size of the kernels; empty where kernels were not measured.
        error: why there are fewer; empty if nothing failed.
    """

    way: str
    clients: int
    served: int
    figures: dict[str, Figures] = field(default_factory=dict)
    error: str = ""


class ClientError(Exception):
    """A client failed; its last line."""


def percentile(values: Sequence[float], share: float) -> float:
    """Return the least value that at least this share of the values does not exceed (nearest rank)."""
    return sorted(values)[max(math.ceil(share * len(values)), 1) - 1]


def figures(clients: Sequence[dict[str, Any]]) -> Figures:
    """Return the figures of clients that ran at once, from what :mod:`tests.gpu.kernels` printed for each."""
    latencies = [latency for client in clients for latency in client["latencies_ms"]]
    return Figures(
        sum(client["flop"] / client["seconds"] for client in clients) / 1e12,
        percentile(latencies, 0.5),
        percentile(latencies, 0.99),
    )


def number(value: float) -> str:
    """Return a figure with three digits, as far as they say something: 665, 17.7, 0.12."""
    return f"{value:.0f}" if value >= 100 else f"{value:.2f}" if value < 1 else f"{value:.3g}"


def table(rows: Sequence[Row], *, measured: bool) -> str:
    """Return the table of the page; where kernels are not measured, the number of clients served instead of them."""
    if not measured:
        lines = ["| clients of one claim | served |", "|---|---|"]
        return "\n".join([*lines, *(f"| {row.way} | {row.served} of {row.clients} |" for row in rows)])
    lines = ["| clients of one claim | large: sum | latency ms | small: sum | latency ms |", "|---|---|---|---|---|"]
    for row in rows:
        cells = [row.way]
        for size in SIZES:
            found = row.figures.get(size)
            latency = "" if found is None else f"{number(found.p50_ms)} / {number(found.p99_ms)}"
            cells += ["failed" if found is None else number(found.tflops), latency]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def start_table(starts: dict[str, list[float]]) -> str:
    """Return the table of the starts, in ms."""
    lines = ["| from `apply` to Running | median ms | least to most |", "|---|---|---|"]
    lines += [
        f"| {title} | {number(statistics.median(times))} | {number(min(times))} to {number(max(times))} |"
        for title, times in starts.items()
    ]
    return "\n".join(lines)


def missing_gpu() -> str:
    """Return why kernels cannot be measured on this machine, and what to do; empty if they can."""
    if shutil.which("nvidia-smi") is None:
        return "nvidia-smi is not on the PATH; run this on a machine with NVIDIA's driver"
    try:
        if not nvidia_smi.query("uuid"):
            return "nvidia-smi lists no GPU; run this on a machine with one"
        return obstacle()
    except nvidia_smi.Refused as error:
        return str(error)


@dataclass(frozen=True)
class Client:
    """How a client is run: its Python, what kernels it has, and folders that it needs in a container."""

    python: str
    engine: str
    visible: tuple[str, ...] = ()

    def start_in(self, got: ContainerFacts, seconds: float) -> "subprocess.Popen[str]":
        """Start it in a container."""
        return container.start(got, *self._command(seconds), visible=self.visible)

    def start_here(self, seconds: float) -> "subprocess.Popen[str]":
        """Start it on the machine itself."""
        pipe = subprocess.PIPE
        return subprocess.Popen(self._command(seconds), env=_machine(), stdin=pipe, stdout=pipe, stderr=pipe, text=True)

    def _command(self, seconds: float) -> list[str]:
        return [self.python, kernels.__file__, self.engine, str(seconds), *SIZES]


def find_client() -> tuple[Client, str]:
    """Return a client with PyTorch, if a Python here can use it with CUDA, else one with kernels of our own and why."""
    probe = (
        "import json, os, sys, torch; torch.zeros(1, device='cuda'); site = os.path.dirname(torch.__file__); "
        "print(json.dumps([sys.executable, sys.prefix, sys.base_prefix, os.path.dirname(site)]))"
    )
    requested = os.environ.get("TORCH_PYTHON")
    pythons = [requested] if requested else [sys.executable, shutil.which("python3") or sys.executable]
    problems = {}
    for python in dict.fromkeys(pythons):
        try:
            done = subprocess.run([python, "-c", probe], env=_machine(), capture_output=True, text=True, check=False)
        except OSError as error:
            problems[python] = error.strerror
            continue
        if not done.returncode:
            found, *visible = json.loads(done.stdout.splitlines()[-1])  # a python on the PATH may be a script
            return Client(found, "torch", tuple(visible)), ""
        problems[python] = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    return Client(sys.executable, "own"), "; ".join(f"{python}: {problem}" for python, problem in problems.items())


def _machine() -> dict[str, str]:
    """Return the environment of a client that has no container, and of PyTorch; a linker finds a driver in /."""
    return {**os.environ} if ROOT == Path("/") else {**os.environ, "LD_LIBRARY_PATH": str(cuda_folder())}


def together(clients: Sequence["subprocess.Popen[str]"], patience: float) -> dict[str, Figures]:
    """Let clients begin at once when all are ready, for each size of kernels; none is left afterwards.

    Raises:
        ClientError: one failed, or they were not done after so many seconds.
    """

    def kill() -> None:
        for client in clients:
            client.kill()

    late = threading.Timer(patience, kill)
    late.start()
    try:
        found = {}
        for size in SIZES:
            for client in clients:
                _read(client, patience)
            for client in clients:
                assert client.stdin is not None
                with suppress(BrokenPipeError):  # it has ended, and what it wrote is read next
                    os.write(client.stdin.fileno(), b"go\n")
            found[size] = figures([json.loads(_read(client, patience)) for client in clients])
        for client in clients:
            client.communicate()  # a client of MPS is not killed while its server has work for it
        return found
    finally:
        late.cancel()
        kill()
        for client in clients:
            with client:  # closes its pipes
                pass


def _read(client: "subprocess.Popen[str]", patience: float) -> str:
    """Return a line of a client."""
    assert client.stdout is not None
    assert client.stderr is not None
    line = client.stdout.readline()
    if line:
        return line
    lines = client.stderr.read().strip().splitlines()
    if client.wait() == -signal.SIGKILL or not lines:
        raise ClientError(f"a client was not done after {patience:.0f} s")
    raise ClientError(lines[-1])


def served(pod: PodFacts) -> list[ContainerFacts]:
    """Return the containers that got the GPU of the pod's claim, and with MPS find the sockets of their daemon."""

    def given(got: ContainerFacts) -> tuple[list[str], str]:
        uuids = [value for name, value in got.environment.items() if name.startswith("GPU_") and name.endswith("_UUID")]
        return uuids, got.environment.get("CUDA_MPS_PIPE_DIRECTORY", "")

    containers = list(pod.containers.values())
    uuids, pipe = given(containers[0])
    if len(uuids) != 1 or (pipe and not Path(pipe, "control").is_socket()):
        return []
    return [got for got in containers if given(got) == (uuids, pipe)]


def measure_way(bed: TestBed, way: Way, client: Client | None, seconds: float) -> Row:
    """Run the containers of a way of sharing, and in each a client, if there are GPUs for one."""
    count, error = 0, ""
    found: dict[str, Figures] = {}
    try:
        if not way.container:
            assert client is not None
            count, found = 1, together([client.start_here(seconds)], _COME_UP)
        else:
            with bed.harness("sharing", directory=HERE) as dra:
                dra.apply(*objects([f"client-{index}" for index in range(way.clients)], sharing=way.sharing))
                containers = served(dra.wait("one", phase="Running"))
                count = len(containers)
                if count < way.clients:
                    error = f"only {count} of {way.clients} containers got the GPU of the claim; kernels were not run"
                elif client is not None:
                    found = together([client.start_in(got, seconds) for got in containers], _COME_UP)
    except (ClientError, AssertionError) as failure:  # the harness says what a pod waits for
        error = str(failure)
    return Row(way.title, way.clients, count, found, error)


def measure_starts(bed: TestBed, way: Way, count: int) -> list[float]:
    """Return for so many pods, one after another, the ms from ``apply`` of claim and pod until the pod is Running."""

    def is_running(dra: Harness) -> bool:
        return bool(dra.get("Pod/one").get("status", {}).get("phase") == "Running")

    times = []
    for _ in range(count + 1):
        with bed.harness("starts", directory=HERE) as dra:
            device_class, *rest = objects(sharing=way.sharing)
            dra.apply(device_class)
            begin = time.perf_counter()
            dra.apply(*rest)
            while not is_running(dra):
                if time.perf_counter() - begin > bed.timeout:
                    dra.wait("one", phase="Running", timeout=0)  # says what it waits for
                time.sleep(_LOOK)
            times.append((time.perf_counter() - begin) * 1000)
    return times[1:]  # the first one also loads modules


def measure(
    reason: str, client: Client | None, starts: int, seconds: float
) -> tuple[dict[str, list[float]], list[Row]]:
    """Return the starts in ms by the kind of claim, and the rows of all ways of sharing."""
    with tempfile.TemporaryDirectory(prefix="gpu-") as folder:
        settings = {"fake_gpus": FAKE, "fake_folder": folder} if reason else {"fake_gpus": "", "driver_root": str(ROOT)}
        with sandbox("gpu_driver.driver:driver", settings=settings) as bed:
            times = {way.title: measure_starts(bed, way, starts) for way in (PLAIN, MPS)}
            rows = []
            for way in WAYS:
                if client is not None or way.container:
                    print(f"... {way.title}", file=sys.stderr, flush=True)
                    rows.append(measure_way(bed, way, client, seconds))
            return times, rows


def heading(reason: str, client: Client | None, no_torch: str) -> str:
    """Return what is measured, where, and what is not and why."""
    if reason:
        gpu = f"fake GPUs ({FAKE}, driver {load(FAKE).driver_version})"
    else:
        gpu = f"{nvidia_smi.query('name')[0]}, driver {nvidia_smi.query('driver_version')[0]}"
    lines = [f"{gpu}, {os.cpu_count()} CPU cores, {datetime.now(UTC).date()}"]
    if client is None:
        lines += [
            f"Throughput and latency of kernels are NOT MEASURED: {reason}.",
            "Measured are how many clients a claim serves, and the time from apply to Running. The MPS daemon is a "
            "double in Python, which starts more slowly than NVIDIA's.",
        ]
    else:
        lines.append(f"Sums are TFLOP/s of all clients, latency is p50 / p99. Kernels: {_ENGINES[client.engine]}.")
    if no_torch:
        lines.append(f"PyTorch cannot be used ({no_torch}). {_NO_TORCH}")
    return "\n".join(lines)


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text} invalid: it is not positive and finite")
    return value


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the tables, and return 1 if a client failed or was not served."""
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.sharing", description=__doc__)
    parser.add_argument("--json", type=Path, help="write the figures there, too")
    parser.add_argument("--fake", action="store_true", help="use fake GPUs, on a machine with a GPU, too")
    parser.add_argument("--seconds", type=_positive, default=4.0, help="how long the kernels of each cell run")
    parser.add_argument("--starts", type=int, default=9, help="number of pods of each kind whose start is measured")
    options = parser.parse_args(arguments)
    if options.starts < 1:
        parser.error(f"--starts {options.starts} invalid: use 1 or more")
    if options.json and not options.json.parent.is_dir():
        parser.error(f"{options.json} cannot be written: its folder does not exist; create it")
    reason = "--fake was given" if options.fake else missing_gpu()
    client, no_torch = (None, "") if reason else find_client()
    head = heading(reason, client, no_torch)
    print(head, flush=True)
    try:
        starts, rows = measure(reason, client, options.starts, options.seconds)
    except (dra.DraKitError, TimeoutError) as error:
        print(f"error: {error or 'a pod did not run in time'}", file=sys.stderr)
        return 1
    print(f"\n{table(rows, measured=client is not None)}\n\n{start_table(starts)}")
    for row in rows:
        if row.error:
            print(f"\n{row.way}: {row.error}")
    if options.json:
        document = {
            "about": head.splitlines(),
            "kernels": None if client is None else client.engine,
            "kernels_not_measured": reason,
            "rows": [asdict(row) for row in rows],
            "starts_ms": starts,
        }
        options.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 0 if all(row.served == row.clients and not row.error for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
