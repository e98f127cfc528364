"""The dra.cpu DRA driver."""
