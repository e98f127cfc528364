"""The wire to the API server: requests, answers, watches."""
