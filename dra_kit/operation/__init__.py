"""What people who run a cluster ask: who has which device, how a driver is, and what is wrong."""
