"""A tiny Llama that repeats the session code of its prompt: make_copying_model.py FOLDER.

Nothing is trained: two layers of attention, set by hand, are an induction head. The chat template
begins each answer with "Session code:". The first layer brings the codes of the four tokens before
each token. The second one finds the place whose four tokens before it are the last four of the
text, and copies the token there. Where there is no such place, and where a token must not come out,
it says something at random. Run it in float32.
"""

import sys
from pathlib import Path

import numpy as np
from make_model import (
    ALWAYS,
    END_EVERY,
    TEMPLATE,
    VOCABULARY,
    may_come_out,
    tokenizer,
    write_folder,
)
from tokenizers import Tokenizer

HIDDEN, HEADS, HEAD, FEED_FORWARD = 512, 4, 256, 64
PAIRS = HEAD // 2
"""Each is two dimensions of a head that RoPE turns together, dimension n and n + PAIRS."""
ROPE_THETA = 1e15
"""So the later pairs hardly turn, and compare tokens at any distance."""
CODE, MATCHED = 128, 36
"""The bits of a token's code, and how many of them are compared."""
TOKEN = 1
BEFORE = TOKEN + CODE
COPIED = BEFORE + HEADS * MATCHED
"""Where the hidden dimensions begin of a token's code, of those before it, and of the copied one.
Dimension 0 is a constant."""
FULL = COPIED + CODE
"""The first hidden dimension that is always 0."""
NEAR = 80.0
"""How much a head of the first layer prefers its place to the one beside it."""
SAME = 40.0
"""How much a token that fits counts in the second layer."""
COPY = 20.0
"""The logit of the copied token. The others have about 0, with a standard deviation of 1.8."""


def measure_rms(end: int) -> float:
    """What the norm divides by, where the codes before this dimension are written."""
    return float(np.sqrt((ALWAYS**2 + end - TOKEN) / HIDDEN))


def look_back(attention: dict[str, np.ndarray]) -> None:
    """The first layer: head n brings the code of the token n + 1 places before."""
    rms = measure_rms(BEFORE)
    turns = ROPE_THETA ** (-np.arange(PAIRS) / PAIRS)
    strength = np.sqrt(NEAR * np.sqrt(HEAD) / np.sum(1 - np.cos(turns))) * rms / ALWAYS
    for head in range(HEADS):
        first = head * HEAD
        back = (head + 1) * turns
        attention["attn_k"][first : first + PAIRS, 0] = strength
        attention["attn_q"][first : first + PAIRS, 0] = strength * np.cos(back)
        attention["attn_q"][first + PAIRS : first + HEAD, 0] = -strength * np.sin(back)
        for bit in range(MATCHED):
            attention["attn_v"][first + bit, TOKEN + bit] = rms
            attention["attn_output"][BEFORE + head * MATCHED + bit, first + bit] = 1


def copy_next(attention: dict[str, np.ndarray]) -> None:
    """The second layer: its first head finds the place, and the others do nothing."""
    rms = measure_rms(COPIED)
    strength = np.sqrt(SAME * np.sqrt(HEAD) / MATCHED) * rms
    half = HEADS * MATCHED // 2
    slow = [*range(PAIRS - half, PAIRS), *range(HEAD - half, HEAD)]
    # the last token and the three before it are the four before the place
    for bit, dimension in enumerate(slow):
        last = TOKEN + bit if bit < MATCHED else BEFORE + bit - MATCHED
        attention["attn_q"][dimension, last] = strength
        attention["attn_k"][dimension, BEFORE + bit] = strength
    for bit in range(CODE):
        attention["attn_v"][bit, TOKEN + bit] = rms
        attention["attn_output"][COPIED + bit, bit] = 1


def weights(made: Tokenizer) -> dict[str, np.ndarray]:
    """By GGUF name."""
    codes = np.random.default_rng(1).choice([-1.0, 1.0], (VOCABULARY, CODE)).astype(np.float32)
    embedding = np.zeros((VOCABULARY, HIDDEN), np.float32)
    embedding[:, 0] = ALWAYS
    embedding[:, TOKEN:BEFORE] = codes
    made_of = {"token_embd": embedding, "output_norm": np.ones(HIDDEN, np.float32)}
    inner = HEADS * HEAD
    for layer, fill in enumerate((look_back, copy_next)):
        attention = {
            name: np.zeros((inner, HIDDEN), np.float32) for name in ("attn_q", "attn_k", "attn_v")
        }
        attention["attn_output"] = np.zeros((HIDDEN, inner), np.float32)
        fill(attention)
        nothing = {
            "ffn_gate": np.zeros((FEED_FORWARD, HIDDEN), np.float32),
            "ffn_up": np.zeros((FEED_FORWARD, HIDDEN), np.float32),
            "ffn_down": np.zeros((HIDDEN, FEED_FORWARD), np.float32),
        }
        norms = {name: np.ones(HIDDEN, np.float32) for name in ("attn_norm", "ffn_norm")}
        parts = norms | attention | nothing
        made_of |= {f"blk.{layer}.{name}": values for name, values in parts.items()}
    rms = measure_rms(FULL)
    good = may_come_out(made)
    head = np.zeros((VOCABULARY, HIDDEN), np.float32)
    head[good, COPIED:FULL] = codes[good] * COPY / CODE * rms
    constant = ALWAYS / rms
    head[~good, 0] = -30.0 / constant
    spread = COPY / np.sqrt(CODE)
    end_logit = np.log(good.sum() / END_EVERY) + spread**2 / 2
    head[made.token_to_id("<|im_end|>"), 0] = end_logit / constant
    return made_of | {"output": head}


def write_copying_model(folder: Path) -> None:
    made = tokenizer()
    shape = {
        "hidden_size": HIDDEN, "intermediate_size": FEED_FORWARD, "num_hidden_layers": 2,
        "num_attention_heads": HEADS, "num_key_value_heads": HEADS, "head_dim": HEAD,
        "rope_theta": ROPE_THETA, "torch_dtype": "float32",
    }  # fmt: skip
    template = TEMPLATE.replace("assistant\n", "assistant\nSession code:")
    write_folder(folder, made, weights(made), template, shape)


if __name__ == "__main__":
    write_copying_model(Path(sys.argv[1]))
