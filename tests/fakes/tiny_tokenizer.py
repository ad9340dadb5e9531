"""Small real tokenizers without files: byte-level as in Llama 3 and Qwen, byte-fallback as in Llama 2."""

from functools import cache

from tokenizers import Tokenizer as Encoder
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from kvasir_runtime.frontend.chat_template import ChatTemplate
from kvasir_runtime.frontend.tokenizer import Tokenizer

TEXT = "The engine reads a plan and answers with tokens. Grüße, 你好世界, こんにちは, 🙂🚀 and 👩‍👩‍👧 too.\n"
TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}<assistant>"


@cache
def byte_level() -> Encoder:
    """Every byte is an id; a few merges, some of which end inside a character."""
    encoder = Encoder(models.BPE())
    encoder.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    encoder.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=330,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    encoder.train_from_iterator([TEXT] * 3, trainer)
    return encoder


@cache
def byte_fallback() -> Encoder:
    """Words with a mark for the blank before them; what the vocabulary lacks is written as bytes."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "▁the", "▁plan", "▁a", "s", "e"]
    vocab = {piece: index for index, piece in enumerate(pieces)}
    encoder = Encoder(models.BPE(vocab=vocab, merges=[], byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    encoder.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    encoder.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return encoder


def tokenizer(template: str | None = TEMPLATE) -> Tokenizer:
    """The byte-level one as the server holds it."""
    encoder = byte_level()
    return Tokenizer(
        encoder=encoder,
        template=None if template is None else ChatTemplate(template, {}),
        vocab_size=encoder.get_vocab_size(),
        longest_token=8,
    )
