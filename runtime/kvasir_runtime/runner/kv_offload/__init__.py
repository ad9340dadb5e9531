"""The second tier of the KV cache: blocks kept in host memory, and the copies between it and the device."""
