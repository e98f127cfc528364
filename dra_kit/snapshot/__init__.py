"""A cluster's objects, for whoever explains: read from its API server, from manifests, or saved in files."""
