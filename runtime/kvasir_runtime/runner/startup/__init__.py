"""Once per process: device and dtype, memory measurement, KV cache size, the startup cache, the finished runner."""
