"""A driver that is a file: globs of device nodes, and what is published of the devices that they match."""
