"""Generates the stubs next to the .proto files: ``python dra_kit/kubelet/proto/generate.py`` or ``make proto``.

The files are compiled under their path in the package (``dra_kit/kubelet/proto/dra_v1.proto``). That gives the
generated modules absolute imports, and the descriptors names that differ from those of other packages'
``api.proto`` in one process.
Needs the development tools grpcio-tools and mypy-protobuf; nothing imports this module at run time.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

from grpc_tools import protoc

PROTO_DIR = Path(__file__).resolve().parent
NRI_DIR = PROTO_DIR.parent / "nri" / "proto"
IMPORT_ROOT = PROTO_DIR.parents[2]
MESSAGES = ("*_pb2.py", "*_pb2.pyi")
SERVICES = ("*_pb2_grpc.py", "*_pb2_grpc.pyi")
GENERATED: Mapping[Path, tuple[str, ...]] = {PROTO_DIR: (*MESSAGES, *SERVICES), NRI_DIR: MESSAGES}
"""What is generated in each folder. NRI does not use gRPC."""

# protoc's marker for build systems that forbid what this package does on purpose
_MARKER = "# NO CHECKED-IN PROTOBUF GENCODE\n"
_NOTE = "# Checked in; generate again with: make proto\n"
# mypy-protobuf leaves the type arguments out, and type checkers would know the servicers in part only
_CONTEXT = "_aio.ServicerContext):  # type: ignore[misc, type-arg]"
_KNOWN_CONTEXT = "_aio.ServicerContext[_typing.Any, _typing.Any]):  # type: ignore[misc]"


def generate(out: Path) -> None:
    """Write the stubs of all .proto files of the package below ``out``.

    Raises:
        RuntimeError: protoc refused a file; it has printed why to stderr.
    """
    tools = Path(sys.executable).parent
    for folder, patterns in GENERATED.items():
        services = [f"--grpc_python_out={out}", f"--mypy_grpc_out=quiet:{out}"] if SERVICES[0] in patterns else []
        status = protoc.main(
            [
                "protoc",
                f"--proto_path={IMPORT_ROOT}",
                f"--proto_path={resources.files('grpc_tools') / '_proto'}",
                f"--plugin=protoc-gen-mypy={tools / 'protoc-gen-mypy'}",
                f"--plugin=protoc-gen-mypy_grpc={tools / 'protoc-gen-mypy_grpc'}",
                f"--python_out={out}",
                f"--mypy_out=quiet:{out}",
                *services,
                *map(str, sorted(folder.glob("*.proto"))),
            ]
        )
        if status != 0:
            raise RuntimeError(f"protoc failed with exit status {status}")
        made = out / folder.relative_to(IMPORT_ROOT)
        for pattern, text, other in (("*_pb2.py", _MARKER, _NOTE), ("*_pb2_grpc.pyi", _CONTEXT, _KNOWN_CONTEXT)):
            for path in made.glob(pattern):
                path.write_text(path.read_text(encoding="utf-8").replace(text, other), encoding="utf-8")


if __name__ == "__main__":
    generate(IMPORT_ROOT)
