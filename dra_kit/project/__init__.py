"""A driver's project: created, updated, its helm chart and its SBOM."""
