"""Whether a cluster, and a node of it, is as drivers need it: the checks of ``dra-kit check``."""
