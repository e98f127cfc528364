"""Drivers in the sandbox: their roles, settings, accounts and logs."""
