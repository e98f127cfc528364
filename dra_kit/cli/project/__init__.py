"""Commands that write or check a driver's files."""
