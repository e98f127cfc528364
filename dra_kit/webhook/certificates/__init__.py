"""The webhook's certificate: given in files, or made and renewed by the webhook itself."""
