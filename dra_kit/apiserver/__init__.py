"""An API server in this process, for the sandbox and for tests, as envtest is for Go."""
