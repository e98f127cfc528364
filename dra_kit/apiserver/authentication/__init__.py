"""Who somebody is: tokens of service accounts, and impersonation."""
