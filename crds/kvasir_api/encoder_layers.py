"""What encoders have beside the layers of other families: tables of positions, of token types and of distances.

Pure arithmetic on the fields of a flattened config.json, for the forecast.
"""

from collections.abc import Mapping
from typing import Any, Final

from kvasir_api.hf_config import count, count_or_zero
from kvasir_api.jina import ROTARY

_WITH_POSITIONS: Final = ("bert", "roberta", "xlm-roberta", "camembert", "distilbert", "mpnet", "jina_embeddings_v3")
_WITH_TYPES: Final = (
    *("bert", "roberta", "xlm-roberta", "camembert", "nomic_bert", "jina_bert", "jina_embeddings_v3", "gte"),
)


def tables(config: Mapping[str, Any], *, hidden: int, heads: int) -> int:
    """Numbers of these tables. Raises ValueError that names a senseless field."""
    family = config.get("model_type")
    has_positions = family in _WITH_POSITIONS and config.get("position_embedding_type") != ROTARY
    positions = count(config, "max_position_embeddings") if has_positions else 0
    types = count_or_zero(config, "type_vocab_size") if family in _WITH_TYPES else 0
    distances = count(config, "relative_attention_num_buckets") if family == "mpnet" else 0
    return (positions + types) * hidden + distances * heads
