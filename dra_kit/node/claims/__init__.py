"""The life of a claim, from the kubelet's call to its record: read, prepare, update, release."""
