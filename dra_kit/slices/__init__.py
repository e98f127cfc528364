"""From what an author's provider finds to published ResourceSlices, for every role that publishes some."""
