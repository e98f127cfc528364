"""An embedded Kubernetes API: objects in memory, real HTTP, the rules of Kubernetes 1.37."""

from dra_kit.apiserver.server import ApiServer, run_in_thread
from dra_kit.resource.gates import FeatureGates

__all__ = ["ApiServer", "FeatureGates", "run_in_thread"]
