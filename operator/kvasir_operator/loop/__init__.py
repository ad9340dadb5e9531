"""The shell: reads, calls the pure rooms, writes. One worker per service, one tick for all readings."""
