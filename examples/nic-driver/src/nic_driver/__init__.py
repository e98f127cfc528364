"""The nic.example.com DRA driver."""
