"""A driver from a file: globs of device nodes, and what is published about the devices that they match."""
