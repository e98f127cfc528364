"""The files that a claim's record stands for: its CDI spec and the metadata of its devices."""
