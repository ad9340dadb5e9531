"""What checkpoints call the layer that drafts (MTP). Families name it; `draft_heads` reads it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class MtpNames:
    """layer: what names of a layer begin with, as a format of its index. first: index of the first, None where they
    follow the decoder's own. norm: behind the layer, with layer as its beginning where that has a place for it.
    embedding_norm, hidden_norm, fuse: of what it reads. copies: what names of the decoder's own begin with, within a
    layer. reads_normed: behind what the decoder has computed it reads its own hidden state behind its last norm.
    """

    layer: str = "model.layers.{}."
    first: int | None = None
    norm: str = "model.layers.{}.shared_head.norm"
    embedding_norm: str = "model.layers.{}.enorm"
    hidden_norm: str = "model.layers.{}.hnorm"
    fuse: str = "model.layers.{}.eh_proj"
    copies: tuple[str, ...] = ("embed_tokens.", "shared_head.head.")
    reads_normed: bool = False

    @property
    def is_numbered(self) -> bool:
        """Whether the config says how many there are; else a checkpoint of the family has one."""
        return self.first is None


DEEPSEEK_MTP = MtpNames()
"""As DeepSeek-V3 has it."""
