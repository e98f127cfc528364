"""A run of the sandbox from start to clean-up, in the foreground or detached."""
