"""Why a pod has no node, no devices, or does not run."""
