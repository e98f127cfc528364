"""What a driver author uses: devices, provider, config, preparer, effects, driver. No I/O imports."""
