"""Why a pod has no devices, or does not run: its claims, and what is not the devices' fault."""
