"""The driver under development: the sandbox around it stays, its code is replaced when its files change."""
