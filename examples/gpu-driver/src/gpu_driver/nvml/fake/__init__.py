"""GPUs that are not there: a fake that answers as NVML does, keeps its state in a file, and breaks on order."""
