"""GPUs in the host's file system: sysfs, procfs and device nodes, below a given root."""
