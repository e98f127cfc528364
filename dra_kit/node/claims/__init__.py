"""One claim from the kubelet's call to its record and back: read, prepare, update, release."""
