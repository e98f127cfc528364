"""What a driver author touches: devices, provider, config, preparer, effects, driver. No I/O imports."""
