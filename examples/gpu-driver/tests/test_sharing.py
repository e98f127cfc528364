"""``make bench-gpu`` without a GPU: figures, tables, what is measured on fake GPUs, and its clients, rehearsed."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from dra_kit.testing import ContainerFacts, TestBed

from tests import mps_session
from tests.gpu import container, kernels, nvidia_smi, sharing
from tests.gpu.sharing import (
    Client,
    ClientError,
    Figures,
    Row,
    figures,
    number,
    percentile,
    start_table,
    table,
    together,
)

PROJECT = Path(__file__).parents[1]
PAGE = PROJECT / "docs/sharing.md"
_CUDA = """
#include <stddef.h>
#include <time.h>
typedef int R;
R cuInit(unsigned flags) { return (int)flags; }
R cuDeviceGet(int *device, int index) { *device = index; return 0; }
R cuDeviceGetAttribute(int *value, int attribute, int device) { *value = 132; return attribute != 16 || device; }
R cuDevicePrimaryCtxRetain(void **context, int device) { *context = &context; return device; }
R cuCtxSetCurrent(void *context) { return !context; }
R cuModuleLoadData(void **module, const char *text) { *module = &module; return text[1] != '.'; }
R cuModuleGetFunction(void **function, void *module, const char *name) { *function = module; return name[0] != 'w'; }
R cuMemAlloc_v2(unsigned long long *place, size_t size) { *place = 4096; return size % 1024 != 0; }
R cuLaunchKernel(void *function, unsigned x, unsigned y, unsigned z, unsigned a, unsigned b, unsigned c,
                 unsigned memory, void *stream, void **arguments, void **extra)
{
    unsigned rounds = *(unsigned *)arguments[1];
    int right = function && x && y * z * b * c == 1 && a == 256 && !memory && !stream && !extra
        && **(unsigned long long **)arguments == 4096 && (rounds == 20000 || rounds == 200);
    return right ? RESULT : 1;
}
R cuCtxSynchronize(void) { struct timespec ms = {0, 1000000}; return nanosleep(&ms, 0); }
"""
"""A double of libcuda that checks its arguments, as far as the kernels of the benchmark use it; a step takes 1 ms."""
_TORCH = """
import sys
assert not any(path.endswith("tests/gpu") for path in sys.path)
bfloat16 = None
class cuda:
    synchronize = staticmethod(lambda: None)
def randn(*size, device, dtype): return size
def empty_like(other): return other
def matmul(one, other, out): assert one == other == out
def zeros(count, device): return [0] * count
"""


def _client(latencies: list[float], tflop: float = 6.0, seconds: float = 2.0) -> dict[str, object]:
    return {"flop": tflop * 1e12, "seconds": seconds, "latencies_ms": latencies}


def test_percentiles_are_values_that_were_measured() -> None:
    values = [float(value) for value in range(100, 0, -1)]
    assert [percentile(values, share) for share in (0.0, 0.5, 0.99, 1.0)] == [1.0, 50.0, 99.0, 100.0]
    assert percentile([7.0], 0.99) == 7.0


def test_figures_are_the_sum_of_all_clients_and_latencies_of_all() -> None:
    assert figures([_client([1.0] * 99, 6.0), _client([5.0] * 99, 2.0)]) == Figures(4.0, 1.0, 5.0)


@pytest.mark.parametrize(
    ("value", "text"), [(665.4, "665"), (17.68, "17.7"), (0.113, "0.11"), (29.0, "29"), (6.5, "6.5"), (1234.0, "1234")]
)
def test_figures_have_three_digits(value: float, text: str) -> None:
    assert number(value) == text


def test_the_table_has_a_row_for_each_way_and_names_what_failed() -> None:
    whole = {"large": Figures(664.7, 6.5, 7.49), "small": Figures(17.7, 0.11, 0.19)}
    rows = [Row("1, whole device", 1, 1, whole), Row("2, MPS", 2, 2, {}, "out of memory")]
    assert table(rows, measured=True).splitlines()[2:] == [
        "| 1, whole device | 665 | 6.5 / 7.49 | 17.7 | 0.11 / 0.19 |",
        "| 2, MPS | failed |  | failed |  |",
    ]


def test_starts_are_shown_with_their_median_and_range() -> None:
    assert start_table({"a plain claim": [90.0, 75.0, 60.5]}).endswith("| a plain claim | 75 | 60.5 to 90 |")


def test_without_a_gpu_starts_are_measured_and_the_output_says_what_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    programs = [folder for folder in os.environ["PATH"].split(":") if not Path(folder, "nvidia-smi").exists()]
    monkeypatch.setenv("PATH", ":".join(programs))
    written = tmp_path / "figures.json"
    assert sharing.main(["--starts", "1", "--json", str(written)]) == 0
    printed = capsys.readouterr().out
    assert "NOT MEASURED: nvidia-smi is not on the PATH; run this on a machine with NVIDIA's driver" in printed
    assert "fake GPUs (h100" in printed
    rows = dict(re.findall(r"^\| (\d, .*?) \| (\d of \d) \|$", printed, re.MULTILINE))
    assert rows == {way.title: f"{way.clients} of {way.clients}" for way in sharing.WAYS if way.container}
    assert re.search(r"^\| a claim with MPS \| [\d.]+ \| [\d.]+ to [\d.]+ \|$", printed, re.MULTILINE)
    found = json.loads(written.read_text())
    assert found["kernels_not_measured"].startswith("nvidia-smi is not on the PATH")
    assert [row["figures"] for row in found["rows"]] == [{}] * len(rows)
    assert all(times[0] > 0 for times in found["starts_ms"].values())


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--starts", "0"], "--starts 0 invalid"),
        (["--seconds", "-1"], "-1 invalid: it is not positive and finite"),
        (["--seconds", "nan"], "nan invalid"),
        (["--json", "/nowhere/figures.json"], "its folder does not exist"),
    ],
)
def test_arguments_are_checked_before_anything_is_measured(
    arguments: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        sharing.main(arguments)
    assert problem in capsys.readouterr().err


def test_kernels_are_not_run_by_fewer_clients_than_the_row_says() -> None:
    class Cluster:
        def harness(self, *_: object, **__: object) -> AbstractContextManager[object]:
            pod = SimpleNamespace(containers={"client-0": ContainerFacts(), "client-1": ContainerFacts()})
            return nullcontext(SimpleNamespace(apply=lambda *_: None, wait=lambda *_, **__: pod))

    way, client = sharing.Way("2, MPS", 2), Client("/nowhere/python", "own")
    row = sharing.measure_way(cast(TestBed, Cluster()), way, client, 0.1)
    assert (row.served, row.figures) == (0, {})
    assert row.error == "only 0 of 2 containers got the GPU of the claim; kernels were not run"


@pytest.mark.parametrize(
    ("printed", "is_root", "reason"),
    [
        ("exit 0", True, "nvidia-smi lists no GPU"),
        ("echo no driver; exit 9", True, "exit code 9: no driver"),
        ("echo GPU-1", False, "run this as root"),
    ],
)
def test_each_reason_for_missing_kernels_is_named(
    printed: str, is_root: bool, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{printed}\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(mps_session, "is_root", lambda: is_root)
    nvidia_smi.once.cache_clear()
    assert reason in sharing.missing_gpu()
    nvidia_smi.once.cache_clear()


@pytest.fixture(scope="module")
def libcuda(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a double of libcuda, and one that cannot launch kernels in ``broken``."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("clients of the benchmark are not rehearsed: gcc is needed to build a double of libcuda")
    folder = tmp_path_factory.mktemp("cuda")
    (folder / "broken").mkdir()
    for place, result in ((folder, 0), (folder / "broken", 719)):
        command = [
            compiler,
            "-x",
            "c",
            "-",
            "-shared",
            "-fPIC",
            f"-DRESULT={result}",
            "-o",
            str(place / "libcuda.so.1"),
        ]
        subprocess.run(command, input=_CUDA, text=True, check=True)
    yield folder


def _here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "ROOT", folder)
    monkeypatch.setattr(sharing, "cuda_folder", lambda: folder)


def test_clients_with_kernels_of_their_own_run_at_once(libcuda: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _here(libcuda, monkeypatch)
    client = Client(sys.executable, "own")
    found = together([client.start_here(0.1) for _ in range(2)], 60)
    assert set(found) == {"large", "small"}
    assert all(each.tflops > 0 and each.p99_ms >= each.p50_ms >= 1 for each in found.values())


def test_a_client_that_fails_is_reported_with_its_last_line(libcuda: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _here(libcuda / "broken", monkeypatch)
    with pytest.raises(ClientError, match="cuLaunchKernel failed with CUresult 719"):
        together([Client(sys.executable, "own").start_here(0.1)], 60)


def test_a_client_that_hangs_is_killed(libcuda: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _here(libcuda, monkeypatch)
    with pytest.raises(ClientError, match="a client was not done after 1 s"):
        together([Client(sys.executable, "own").start_here(60)], 1)


def test_pytorch_is_used_where_a_python_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch.py").write_text(_TORCH)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("TORCH_PYTHON", sys.executable)
    client, problem = sharing.find_client()
    assert (client.engine, problem) == ("torch", "")
    assert together([client.start_here(0.05)], 60)["large"].tflops > 0


def test_a_python_without_pytorch_is_named_and_own_kernels_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_PYTHON", "/nowhere/python")
    client, problem = sharing.find_client()
    assert (client.engine, problem) == ("own", "/nowhere/python: No such file or directory")


def test_the_kernel_does_the_operations_that_are_counted() -> None:
    assert kernels._PTX.count(b"fma.rn.f32") * 2 == kernels._PER_ROUND


@pytest.mark.usefixtures("may_mount")
def test_clients_run_in_containers(libcuda: Path) -> None:
    got = ContainerFacts(mounts={f"{container.LIBRARIES}/libcuda.so.1": str(libcuda / "libcuda.so.1")})
    found = together([Client(sys.executable, "own").start_in(got, 0.1) for _ in range(2)], 60)
    assert found["small"].tflops > 0


def test_the_page_has_the_rows_of_the_benchmark() -> None:
    rows = re.findall(r"^\| (\d, [^|]*) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert rows == [way.title for way in sharing.WAYS]


def test_the_manifests_of_the_page_have_no_findings(tmp_path: Path) -> None:
    blocks = re.findall(r"^```yaml\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert len(blocks) == 6
    (tmp_path / "page.yaml").write_text("---\n".join(blocks))
    command = [str(Path(sys.executable).with_name("dra-kit")), "lint", "--driver", str(PROJECT), "--strict"]
    done = subprocess.run([*command, "page.yaml"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
