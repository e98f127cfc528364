"""Public drivers in Go, built from given sources and judged; not part of a test run."""
