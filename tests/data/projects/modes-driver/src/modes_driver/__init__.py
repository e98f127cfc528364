"""The modes-driver.example.com DRA driver."""
