"""Makes the demo's model: a Llama of two million weights that talks about Kvasir, trained on our own pages.

Run as `python -m kvasir_local.demo.train OUT [--steps N]` (`make demo-model`): about two minutes on two cores. The seed
is fixed. It needs the `dev` extra (transformers) and is never run by the product: the result lies beside this file.
"""

import json
import math
import random
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM

SEED: Final = 20
VOCABULARY: Final = 2048
CONTEXT: Final = 2048
BATCH: Final = 12
LENGTH: Final = 256
EOS: Final = "<|end|>"
ROLES: Final = ("<|system|>", "<|user|>", "<|assistant|>")
TEMPLATE: Final = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
SYSTEM: Final = "You are a helpful assistant."
FORMS: Final = ("{q}", "{l}", "{q}", "Please tell me: {l}", "{b}", "I would like to know: {l}")


def main(arguments: list[str]) -> int:
    """Trains and writes the checkpoint to the directory that is named first."""
    out = Path(arguments[0])
    steps = int(arguments[arguments.index("--steps") + 1]) if "--steps" in arguments else 300
    random.seed(SEED)
    torch.manual_seed(SEED)
    pairs = questions(Path("docs/faq.md").read_text())
    tokenizer = train_tokenizer([f"{question} {answer}" for question, answer in pairs] + pages())
    model = train(tokenizer, pairs, steps)
    write(out, tokenizer, model)
    for question in ("What is Kvasir?", "how do i stop the demo", "What happens when a pod is drained?"):
        print(f"{question} -> {answer_to(model, tokenizer, question)}")
    return 0


def questions(page: str) -> list[tuple[str, str]]:
    """Pairs of question and answer: the second-level headings of the page and the text below each."""
    return [
        (q.strip(), " ".join(a.split())) for q, a in re.findall(r"^## (.+)\n((?:(?!## ).*\n?)*)", page, re.MULTILINE)
    ]


def pages() -> list[str]:
    """The other pages, for the vocabulary."""
    return [path.read_text() for path in sorted(Path("docs").glob("*.md"))]


def train_tokenizer(texts: list[str]) -> Tokenizer:
    """A byte-level BPE, so that every text has tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[EOS, *ROLES],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def conversation(question: str, answer: str, *, system: bool) -> tuple[str, str]:
    """Prompt and answer as the chat template writes them."""
    head = f"<|system|>{SYSTEM}{EOS}" if system else ""
    return f"{head}<|user|>{question}{EOS}<|assistant|>", f"{answer}{EOS}"


def form(question: str) -> str:
    """One of the ways in which a person may write the question."""
    lower = question[:1].lower() + question[1:]
    return random.choice(FORMS).format(q=question, l=lower, b=re.sub(r"[?.!']", "", question).lower())


def batches(tokenizer: Tokenizer, pairs: list[tuple[str, str]]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Endless packed conversations: ids and targets, both (BATCH, LENGTH) int64; target -100 in a prompt."""

    def stream() -> Iterator[tuple[int, int]]:
        while True:
            for question, answer in random.sample(pairs, len(pairs)):
                prompt, reply = conversation(form(question), answer, system=random.random() < 0.3)
                yield from ((token, -100) for token in tokenizer.encode(prompt).ids)
                yield from ((token, token) for token in tokenizer.encode(reply).ids)

    source = stream()
    while True:
        rows = [[next(source) for _ in range(LENGTH)] for _ in range(BATCH)]
        table = torch.tensor(rows)
        yield table[..., 0], table[..., 1]


def train(tokenizer: Tokenizer, pairs: list[tuple[str, str]], steps: int) -> LlamaForCausalLM:
    """AdamW with warm-up and a cosine; prints the loss every 50 steps."""
    config = LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=6,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.token_to_id(EOS),
        pad_token_id=None,
    )
    model = LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0.05)
    rate = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda s: min((s + 1) / 40, 0.02 + math.cos(s / steps * math.pi / 2) ** 2)
    )
    started = time.monotonic()
    for step, (ids, targets) in zip(range(steps), batches(tokenizer, pairs), strict=False):
        loss = model(input_ids=ids, labels=targets).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        rate.step()
        optimizer.zero_grad()
        if step % 50 == 0 or step == steps - 1:
            print(f"step {step} loss {loss.item():.3f} after {time.monotonic() - started:.0f} s", flush=True)
    return model


def write(out: Path, tokenizer: Tokenizer, model: LlamaForCausalLM) -> None:
    """A Hugging Face directory: config, bfloat16 safetensors, tokenizer with chat template."""
    out.mkdir(parents=True, exist_ok=True)
    model.to(torch.bfloat16).save_pretrained(out)
    tokenizer.save(str(out / "tokenizer.json"), pretty=False)
    about: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": CONTEXT,
        "eos_token": EOS,
        "chat_template": TEMPLATE,
    }
    (out / "tokenizer_config.json").write_text(json.dumps(about, indent=2) + "\n")


def answer_to(model: LlamaForCausalLM, tokenizer: Tokenizer, question: str) -> str:
    """Greedy answer, to look at."""
    prompt, _ = conversation(question, "", system=False)
    ids = torch.tensor([tokenizer.encode(prompt).ids])
    with torch.no_grad():
        out = model.generate(ids, max_new_tokens=80, do_sample=False)
    text: str = tokenizer.decode(out[0, ids.shape[1] :].tolist())
    return text


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
