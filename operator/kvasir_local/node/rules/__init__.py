"""Pure rooms of the process node: values in, values out; no clock, no files, no network."""
