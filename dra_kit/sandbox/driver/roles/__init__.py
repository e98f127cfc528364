"""The driver's roles as they run in a sandbox: in threads, or in processes that can be killed."""
