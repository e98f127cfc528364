"""What the driver is given in a sandbox: its project, its settings, the files that they name."""
