"""The report: what became of every pod, as JSON."""
