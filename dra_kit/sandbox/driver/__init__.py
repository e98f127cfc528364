"""The driver in a sandbox: its roles on every node, started, killed, replaced."""
