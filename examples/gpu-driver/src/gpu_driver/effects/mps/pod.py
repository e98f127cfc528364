"""``MpsPod``: the MPS control daemon of a group of devices, as a pod that outlives the driver's."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import dra_kit as dra

from gpu_driver.effects.mps.daemon import sharing_keys
from gpu_driver.effects.mps.limits import Limits
from gpu_driver.effects.mps.paths import MpsFolder
from gpu_driver.settings import Settings

_ASK = ["python", "-m", "gpu_driver.effects.mps.serve", "ask"]
_END_WITHIN = 30
_DRIVER_ROOT = "/driver-root"
_READY = "/tmp/mps-is-ready"
"""In the container's own files: one that is started again has it no more."""
LABELS = {"app.kubernetes.io/component": "mps"}
"""Of every such pod: the chart's NetworkPolicy, PodDisruptionBudget and admission policy go by them."""


class MpsPod(dra.ClusterObject, id="mps", api_version="v1", kind="Pod", plural="pods", ready_condition="Ready"):
    """Run ``nvidia-cuda-mps-control`` on the node, whatever its taints, for devices of one entry of a claim's config.

    The kubelet starts it again when it ends or does not answer. Ready means that limits are read back.

    Attributes:
        claim_uid: with the folder's name behind it, for a claim may have several daemons.
        node: where the devices are.
        image: with this driver's package.
        pull_secrets: names of Secrets with which the image is pulled.
        driver_root: of the host, where NVIDIA's programs are.
        double: run the double of the daemon that is in the image, for fake GPUs.
        environment: variables for that double, by which it finds Python and its faults.
        devices, folder, limits, multi_user: as :class:`~gpu_driver.effects.mps.daemon.MpsDaemon` has them.
    """

    node: str
    image: str
    pull_secrets: tuple[str, ...] = ()
    driver_root: Path
    devices: tuple[str, ...]
    folder: MpsFolder
    limits: Limits = Limits()
    multi_user: bool = False
    double: bool = False
    environment: dict[str, str] = {}

    @classmethod
    def namespaces(cls, settings: Settings) -> Sequence[str]:
        return [settings.mps_namespace] if settings.mps_daemon == "pod" else []

    def ended(self, found: Mapping[str, Any]) -> bool:
        # the phase of every pod after an orderly shutdown of the node; the kubelet starts none of them again
        return (found.get("status") or {}).get("phase") in {"Failed", "Succeeded"}

    def keys(self) -> list[str]:
        return [*super().keys(), *sharing_keys(self.devices)]

    def body(self) -> dict[str, Any]:
        return {
            "metadata": {"labels": {**LABELS, "gpu.nvidia.com/claim": self.claim_uid}},
            "spec": {
                "nodeName": self.node,
                "tolerations": [{"operator": "Exists"}],
                # a daemon that is evicted takes its clients along
                "priorityClassName": "system-node-critical",
                "restartPolicy": "Always",
                "terminationGracePeriodSeconds": _END_WITHIN,
                "automountServiceAccountToken": False,
                # the daemon identifies servers and clients by their process IDs
                "hostPID": True,
                "imagePullSecrets": [{"name": name} for name in self.pull_secrets],
                "containers": [self._container()],
                "volumes": [
                    {"name": "driver", "hostPath": {"path": str(self.driver_root), "type": "Directory"}},
                    {"name": "mps", "hostPath": {"path": str(self.folder.path), "type": "Directory"}},
                    {"name": "shm", "hostPath": {"path": str(self.folder.shm), "type": "Directory"}},
                ],
            },
        }

    def _container(self) -> dict[str, Any]:
        environment = {
            **self.environment,
            **self.folder.environment,
            "CUDA_VISIBLE_DEVICES": ",".join(self.devices),
            "MPS_LIMITS": self.limits.model_dump_json(),
            "MPS_MULTI_USER": "true" if self.multi_user else "",
            "MPS_DOUBLE": "true" if self.double else "",
            "MPS_DRIVER_ROOT": _DRIVER_ROOT,
            "MPS_READY_FILE": _READY,
        }
        return {
            "name": "mps",
            "image": self.image,
            "command": ["python", "-m", "gpu_driver.effects.mps.serve"],
            "env": [{"name": name, "value": value} for name, value in environment.items()],
            "securityContext": {"privileged": True, "runAsUser": 0},
            # there once the daemon has answered and its limits are read back; looked at often, so it starts no Python
            "readinessProbe": {"exec": {"command": ["test", "-e", _READY]}, "periodSeconds": 1, "timeoutSeconds": 5},
            "livenessProbe": {
                "exec": {"command": _ASK},
                "initialDelaySeconds": 30,
                "periodSeconds": 30,
                "timeoutSeconds": 15,
                "failureThreshold": 3,
            },
            "volumeMounts": [
                {
                    "name": "driver",
                    "mountPath": _DRIVER_ROOT,
                    # in the folder of a driver container the places below are made first
                    "readOnly": self.driver_root == Path("/"),
                },
                # the same place for what runs in the driver's root, and for what runs in the image
                *({"name": "mps", "mountPath": f"{root}{self.folder.path}"} for root in ("", _DRIVER_ROOT)),
                *({"name": "shm", "mountPath": f"{root}/dev/shm"} for root in ("", _DRIVER_ROOT)),
            ],
        }
