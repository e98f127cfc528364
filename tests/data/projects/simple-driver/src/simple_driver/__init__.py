"""The simple-driver.example.com DRA driver."""
