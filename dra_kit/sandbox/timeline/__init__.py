"""What happens in a sandbox, for people and for tools: live view, recorder, report."""
