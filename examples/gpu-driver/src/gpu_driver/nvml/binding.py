"""nvidia-ml-py, in the one place that knows it has no types."""

from importlib import import_module
from typing import Any

pynvml: Any = import_module("pynvml")
"""NVIDIA's binding of NVML, as it is published; what it returns is checked and typed by the callers here."""
