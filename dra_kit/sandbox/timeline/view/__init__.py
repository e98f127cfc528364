"""The live view: the timeline in lines, for people."""
