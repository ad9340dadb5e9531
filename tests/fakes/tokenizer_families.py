"""Tokenizers with the components of the families that people run, trained on this repository's documentation.

The splitting rules are those of the models' own tokenizer.json; only the vocabularies are small.
"""

from functools import cache
from pathlib import Path

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Encoder

CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{SPACES}"
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
O200K = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{CONTRACTIONS}?|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{CONTRACTIONS}?"
    rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{SPACES}"
)
DEEPSEEK = (
    r"\p{N}{1,3}",
    r"[一-龥぀-ゟ゠-ヿ]+",
    (
        r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
        rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{SPACES}"
    ),
)
BYTE_LEVEL = {
    "gpt2": (),
    "llama3": (LLAMA3,),
    "qwen2": (QWEN2,),
    "o200k": (O200K,),
    "deepseek": DEEPSEEK,
    "smollm": "digits",
    "looks-back": (rf"(?<=x) ?\p{{L}}+|{LLAMA3}",),
}
NAMES = (*BYTE_LEVEL, "llama2", "metaspace", "gemma", "bert", "unigram", "xlm-r", "no-splitting")
UNSPLIT = {"looks-back", "unigram", "no-splitting"}
"""Those whose texts are tokenized in one piece: nothing shows that they may be split."""


@cache
def text() -> str:
    root = Path(__file__).parents[2]
    pages = "\n".join(path.read_text() for path in sorted((root / "docs").glob("*.md")))
    return pages + "\n你好世界。这是一段中文文本，没有空格。\n\nGrüße, naïve café — Привет, мир! 🙂\n" * 20


@cache
def family(name: str) -> Encoder:
    """The tokenizer of a family."""
    encoder = _made(name)
    specials = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"]
    encoder.add_special_tokens([AddedToken(one, special=True, normalized=False) for one in specials])
    begin, end = (encoder.token_to_id(one) or 0 for one in ("<s>", "</s>"))
    if name == "bert":
        encoder.post_processor = processors.BertProcessing(("</s>", end), ("<s>", begin))
    elif name not in {"qwen2", "gpt2"}:
        encoder.post_processor = processors.TemplateProcessing(
            single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", begin)]
        )
    return encoder


def _made(name: str) -> Encoder:
    if name in BYTE_LEVEL or name == "no-splitting":
        return _byte_level(name)
    if name in {"bert", "unigram", "xlm-r"}:
        return _words(name)
    return _sentencepiece(name)


def _byte_level(name: str) -> Encoder:
    encoder = Encoder(models.BPE())
    rules = BYTE_LEVEL.get(name, ())
    own_rule = name == "gpt2"
    steps: list[pre_tokenizers.PreTokenizer] = [
        pre_tokenizers.Split(Regex(rule), "isolated") for rule in (() if rules == "digits" else rules)
    ]
    if rules == "digits":
        steps, own_rule = [pre_tokenizers.Digits(individual_digits=True)], True
    encoder.pre_tokenizer = pre_tokenizers.Sequence(
        [*steps, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=own_rule)]
    )
    if name == "qwen2":
        encoder.normalizer = normalizers.NFC()
    encoder.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1500, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    lines = text() if name != "no-splitting" else text()[:20_000]
    encoder.train_from_iterator(lines.split("\n\n"), trainer)
    return encoder


def _sentencepiece(name: str) -> Encoder:
    """As they are converted: merges within words, bytes for what the vocabulary lacks."""
    learner = Encoder(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=True)
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=1500, special_tokens=["<unk>", *bytes_], show_progress=False)
    learner.train_from_iterator(text().split("\n"), trainer)
    model = learner.model
    model.unk_token, model.byte_fallback, model.fuse_unk = "<unk>", True, True
    encoder = Encoder(model)
    if name == "llama2":
        encoder.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    elif name == "metaspace":
        encoder.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    else:
        encoder.normalizer = normalizers.Replace(" ", "▁")
        encoder.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    encoder.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return encoder


def _words(name: str) -> Encoder:
    if name == "bert":
        encoder = Encoder(models.WordPiece(unk_token="[UNK]"))
        encoder.normalizer = normalizers.BertNormalizer()
        encoder.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        encoder.decoder = decoders.WordPiece()
        trainer: trainers.Trainer = trainers.WordPieceTrainer(
            vocab_size=1500, special_tokens=["[UNK]"], show_progress=False
        )
    else:
        encoder = Encoder(models.Unigram())
        space = pre_tokenizers.Metaspace(prepend_scheme="always", split=name == "xlm-r")
        words = [pre_tokenizers.WhitespaceSplit()] if name == "xlm-r" else []
        encoder.pre_tokenizer = pre_tokenizers.Sequence([*words, space])
        encoder.decoder = decoders.Metaspace()
        trainer = trainers.UnigramTrainer(
            vocab_size=1000, special_tokens=["<unk>"], unk_token="<unk>", show_progress=False
        )
    encoder.train_from_iterator((text() if name == "bert" else text()[:30_000]).split("\n"), trainer)
    return encoder
