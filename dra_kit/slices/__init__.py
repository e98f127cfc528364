"""Turns what an author's provider finds into published ResourceSlices, for every role that publishes some."""
