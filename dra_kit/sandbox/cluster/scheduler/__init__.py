"""The scheduler: a pure decision for one pod at a time, and around it a loop that watches and writes."""
