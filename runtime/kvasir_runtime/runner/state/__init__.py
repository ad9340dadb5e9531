"""What the runner keeps of each running sequence between steps, on the host or on the device."""
