"""The partitionable-driver.example.com DRA driver."""
