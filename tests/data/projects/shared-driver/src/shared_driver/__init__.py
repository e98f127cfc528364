"""The shared-driver.example.com DRA driver."""
