"""A driver from a file: globs of device nodes, and what is published of the devices that they match."""
