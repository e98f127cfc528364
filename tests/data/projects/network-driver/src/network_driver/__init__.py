"""The network-driver.example.com DRA driver."""
