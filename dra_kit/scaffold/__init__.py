"""``dra-kit new`` and ``dra-kit update``: a driver's project from the template."""
