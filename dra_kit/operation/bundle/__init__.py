"""``dra-kit support-bundle``: what somebody elsewhere needs to help, and nothing secret."""
