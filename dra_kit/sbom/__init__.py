"""What an image or a wheel is made of, as a CycloneDX document (SBOM)."""
