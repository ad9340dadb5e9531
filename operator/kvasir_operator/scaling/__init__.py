"""How many replicas a service needs: absolute levels from readings, then windows, rates and bounds. Never writes
anything."""
