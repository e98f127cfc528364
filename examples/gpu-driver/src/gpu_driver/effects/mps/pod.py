"""``MpsPod``: the MPS control daemon of a group of devices, as a pod that outlives the driver's."""

from pathlib import Path
from typing import Any

import dra_kit as dra

from gpu_driver.effects.mps.daemon import sharing_keys
from gpu_driver.effects.mps.limits import Limits
from gpu_driver.effects.mps.paths import MpsFolder

_ASK = ["python", "-m", "gpu_driver.effects.mps.serve", "ask"]
_END_WITHIN = 30


class MpsPod(dra.ClusterObject, id="mps", api_version="v1", kind="Pod", plural="pods", ready_condition="Ready"):
    """Runs ``nvidia-cuda-mps-control`` on the node, whatever its taints, for devices of one entry of a claim's config.

    The kubelet starts it again when it ends or does not answer. Ready means that limits are read back.

    Attributes:
        claim_uid: with the folder's name behind it, for a claim may have several daemons.
        node: where the devices are.
        image: with this driver's package.
        driver_root: of the host, where NVIDIA's programs are.
        devices, folder, limits, multi_user: as :class:`~gpu_driver.effects.mps.daemon.MpsDaemon` has them.
    """

    node: str
    image: str
    driver_root: Path
    devices: tuple[str, ...]
    folder: MpsFolder
    limits: Limits = Limits()
    multi_user: bool = False

    def keys(self) -> list[str]:
        return [*super().keys(), *sharing_keys(self.devices)]

    def body(self) -> dict[str, Any]:
        return {
            "metadata": {"labels": {"app.kubernetes.io/component": "mps", "gpu.nvidia.com/claim": self.claim_uid}},
            "spec": {
                "nodeName": self.node,
                "tolerations": [{"operator": "Exists"}],
                # a daemon that is evicted takes its clients along
                "priorityClassName": "system-node-critical",
                "restartPolicy": "Always",
                "terminationGracePeriodSeconds": _END_WITHIN,
                "automountServiceAccountToken": False,
                # the daemon tells its servers and clients by their process IDs
                "hostPID": True,
                "containers": [self._container()],
                "volumes": [
                    {"name": "driver", "hostPath": {"path": str(self.driver_root)}},
                    {"name": "mps", "hostPath": {"path": str(self.folder.path), "type": "Directory"}},
                    {"name": "shm", "hostPath": {"path": str(self.folder.shm), "type": "Directory"}},
                ],
            },
        }

    def _container(self) -> dict[str, Any]:
        environment = {
            **self.folder.environment,
            "CUDA_VISIBLE_DEVICES": ",".join(self.devices),
            "MPS_LIMITS": self.limits.model_dump_json(),
            "MPS_MULTI_USER": "true" if self.multi_user else "",
            "MPS_DRIVER_ROOT": "/driver-root",
        }
        return {
            "name": "mps",
            "image": self.image,
            "command": ["python", "-m", "gpu_driver.effects.mps.serve"],
            "env": [{"name": name, "value": value} for name, value in environment.items()],
            "securityContext": {"privileged": True, "runAsUser": 0},
            # the limits are set before it answers here
            "readinessProbe": {"exec": {"command": _ASK}, "periodSeconds": 2, "timeoutSeconds": 5},
            "livenessProbe": {
                "exec": {"command": _ASK},
                "initialDelaySeconds": 30,
                "periodSeconds": 10,
                "timeoutSeconds": 5,
                "failureThreshold": 3,
            },
            "volumeMounts": [
                {"name": "driver", "mountPath": "/driver-root", "readOnly": True},
                {"name": "mps", "mountPath": str(self.folder.path)},
                {"name": "shm", "mountPath": "/dev/shm"},
            ],
        }
