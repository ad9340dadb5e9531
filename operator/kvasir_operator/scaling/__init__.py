"""How many replicas a service needs: absolute levels from readings, then windows, rates and bounds. Never writes
anything.

What a tick creates is a msgspec Struct or a named tuple: a frozen dataclass takes many times as long to create, and a
tick makes tens of objects for each service."""
