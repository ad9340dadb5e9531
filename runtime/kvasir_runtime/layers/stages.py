"""Which layers each of several processes has that compute a model one after another (pipeline parallelism).

A stage has consecutive layers, and their part of the cache. The first has the table of embeddings and the head too, so
that tokens are sampled where they come from; the last has the norm behind the layers. Huang et al. 2019 (GPipe).
`kvasir_api.stage_cut` has which layers each stage has.
"""

from dataclasses import replace

from kvasir_runtime.layers.spec import DecoderSpec


def staged(spec: DecoderSpec, layers: range) -> DecoderSpec:
    """The spec of a process with these layers. Raises ValueError, which says what cannot be divided so."""
    if spec.encoder is not None:
        raise ValueError("encoders are computed by one process")
    return replace(spec, stage=layers, head=spec.head if layers.start == 0 else "none")
