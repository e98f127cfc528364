"""GPUs that are not there: a fake that answers as NVML does, stores its state in a file, and injects faults."""
