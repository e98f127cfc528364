"""Which devices exist: devices, pools, their identity and their health."""
