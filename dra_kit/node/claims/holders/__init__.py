"""Who has which device, and until when."""
