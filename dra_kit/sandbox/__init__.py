"""Running a driver for people: stories, their runner, and the terminal view."""
