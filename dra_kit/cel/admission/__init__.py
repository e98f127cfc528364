"""ValidatingAdmissionPolicies: their expressions, and what they say of a request, without an API server."""
