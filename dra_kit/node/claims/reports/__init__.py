"""What becomes of claims and is known of their devices: reported to the API server, and to whom it concerns here."""
