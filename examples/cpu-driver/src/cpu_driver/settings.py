"""The settings of the drivers. Each field is an option of ``dra-kit node``, such as ``--mode``."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field, field_validator

from cpu_driver.topology import parse_cpus


class NodeSettings(BaseModel):
    """Where the node is described: the settings of both drivers."""

    sysfs: Path = Field(default=Path("/sys"), description="root of sysfs; for CPUs also a YAML file of a fake machine")
    kubelet_root: Path = Field(
        default=Path("/var/lib/kubelet"), description="directory of the kubelet, whose manager must not be static"
    )


class Settings(NodeSettings):
    """How the CPUs of a node are offered."""

    mode: Literal["grouped", "individual"] = Field(
        default="grouped", description="offer groups of CPUs that claims share, or each CPU as a device"
    )
    group_by: Literal["numanode", "socket"] = Field(default="numanode", description="what a group of CPUs is")
    reserved_cpus: str = Field(
        default="", description="CPUs that no claim gets, such as 0-1,32; containers without a claim get them last"
    )
    node_allocatable: bool = Field(
        default=False, description="let claims count against the CPUs of the node (KEP-5517, alpha in Kubernetes 1.37)"
    )

    @field_validator("reserved_cpus")
    @classmethod
    def _is_list(cls, value: str) -> str:
        parse_cpus(value)
        return value
