"""Kernels for CPUs in C++: a small library behind a C interface, built where Kvasir is installed.

`build` compiles it, `library` finds and loads it, `linear` and others wrap its functions. Where it is absent the engine
computes with torch's own operations, and its banner says so.
"""
