"""ValidatingAdmissionPolicies with their bindings and parameters."""
