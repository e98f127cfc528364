"""``dra-kit dev``: a driver that is replaced whenever its files change."""
