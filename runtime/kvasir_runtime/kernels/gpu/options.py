"""Compiler options that all launches share."""


def options(elements: int) -> dict[str, int | bool]:
    """Of a program that streams: warps such that a thread holds sixteen elements, the width of two loads.

    elements: of the program's largest tile, a power of two. Products and sums are fused, as references do not forbid:
    said here because Triton's own default is about to change.
    """
    return {"num_warps": min(16, max(1, elements // 512)), "enable_fp_fusion": True}
