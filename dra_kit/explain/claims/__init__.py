"""Why a claim has its devices, gets them, or does not."""
