"""Which of several operators acts: decided from a Lease as it was read, without a clock of its own."""
