"""What every role's process is made of: supervisor, settings, logging, and loading a driver."""
