"""The operations as Triton kernels with their launchers, one file each, named as the operation whose contract it keeps.

Contract, reference and cases are in `kernels/<operation>.py`. These modules stand apart because importing them imports
triton, which a process on a CPU has no use for: only `ops_for` reaches in here, and only when they are wanted.
Launch parameters are plain tables of head size, dtype and sizes; nothing is tuned while serving.
"""
