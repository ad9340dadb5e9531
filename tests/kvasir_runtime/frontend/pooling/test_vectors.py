"""Arithmetic on vectors, with values worked out by hand."""

import base64
import struct

import numpy as np
import pytest

from kvasir_runtime.frontend.pooling import vectors

VECTOR = np.array([3.0, 4.0, 12.0], dtype=np.float32)


@pytest.mark.parametrize(
    ("dimensions", "normalize", "want"),
    [
        (None, False, [3, 4, 12]),
        (2, False, [3, 4]),
        (2, True, [0.6, 0.8]),
        (None, True, [3 / 13, 4 / 13, 12 / 13]),
    ],
)
def test_embeddings_are_cut_and_then_scaled(dimensions, normalize, want):
    made = vectors.embedding(VECTOR, dimensions=dimensions, normalize=normalize)
    assert made.dtype == np.float32
    assert made.tolist() == pytest.approx(want)


def test_zeros_stay_zeros():
    zero = np.zeros(2, dtype=np.float32)
    assert vectors.embedding(zero, dimensions=None, normalize=True).tolist() == [0, 0]
    assert vectors.similarity(zero, VECTOR[:2]) == 0


@pytest.mark.parametrize(("one", "other", "want"), [((1, 0), (0, 2), 0), ((1, 1), (3, 3), 1), ((1, 0), (-2, 0), -1)])
def test_similarity_is_a_cosine(one, other, want):
    assert vectors.similarity(np.float32(one), np.float32(other)) == pytest.approx(want)


@pytest.mark.parametrize(("logit", "want"), [(0, 0.5), (1000, 1), (-1000, 0), (2, 0.8807970779778823)])
def test_sigmoid(logit, want):
    assert vectors.sigmoid(logit) == pytest.approx(want)


def test_base64_is_little_endian_float32():
    assert struct.unpack("<3f", base64.b64decode(vectors.as_base64(VECTOR))) == (3, 4, 12)
    assert vectors.read(struct.pack("<2f", 1.5, -2)).tolist() == [1.5, -2]
