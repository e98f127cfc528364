"""The claims that hold our devices: what becomes of them, and who is notified."""
