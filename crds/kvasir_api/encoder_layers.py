"""What encoders have beside the layers of other families: tables of positions, of token types and of distances.

Pure arithmetic on the fields of a flattened config.json, for the forecast.
"""

from collections.abc import Mapping
from typing import Any, Final

from kvasir_api.hf_config import count, count_or_zero

_WITH_POSITIONS: Final = ("bert", "roberta", "xlm-roberta", "camembert", "distilbert", "mpnet")
_WITH_TYPES: Final = ("bert", "roberta", "xlm-roberta", "camembert", "nomic_bert", "jina_bert")


def tables(config: Mapping[str, Any], *, hidden: int, heads: int) -> int:
    """Numbers of these tables. Raises ValueError that names a senseless field."""
    family = config.get("model_type")
    positions = count(config, "max_position_embeddings") if family in _WITH_POSITIONS else 0
    types = count_or_zero(config, "type_vocab_size") if family in _WITH_TYPES else 0
    distances = count(config, "relative_attention_num_buckets") if family == "mpnet" else 0
    return (positions + types) * hidden + distances * heads
