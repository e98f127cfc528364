"""A ValidatingAdmissionPolicy from a driver's config models, for clusters that want no webhook; pure."""
