"""What the host's file system tells of GPUs: sysfs, procfs and device nodes, below a root that tests choose."""
