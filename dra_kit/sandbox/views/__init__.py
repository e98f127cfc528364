"""What a terminal shows of the timeline."""
