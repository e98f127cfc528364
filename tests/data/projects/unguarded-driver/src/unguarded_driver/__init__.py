"""The unguarded-driver.example.com DRA driver."""
