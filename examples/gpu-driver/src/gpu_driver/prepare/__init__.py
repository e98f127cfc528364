"""What a container gets with a device: device nodes, the driver's libraries, and the sharing that its claim wants."""
