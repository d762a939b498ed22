"""Prompt mistakes: settings of prompts, pictures and prefixes that contradict each other or the protocol."""

from collections.abc import Iterator
from typing import Final

from locust_llm.load.reuse import most_blocks
from locust_llm.slo.metrics import BY_WORD, OF_OUTPUT

from .options.option import options_of
from .settings import Settings
from .sweep import INPUT

MAX_PIXELS: Final = 64e6
MAX_SAMPLES: Final = 32e6
"""Of a synthetic picture or sound: to make it takes seconds, and some 200 MB."""


def prompt_mistakes(s: Settings) -> Iterator[str]:
    """Each as one line with what to do."""
    yield from _pooling(s)
    yield from _media(s)
    yield from _prefix_cache(s)


def _pooling(s: Settings) -> Iterator[str]:
    """Of embeddings and rerank, which have no output."""
    kind, usual = f"--endpoint-type {s.endpoint_type}", Settings()
    if s.generates:
        if s.batch_size_text != usual.batch_size_text:
            yield f"--batch-size-text is of --endpoint-type embeddings or rerank, and {s.endpoint_type} has one prompt"
        return
    if s.streaming:
        yield f"{kind} answers in one piece: leave out --streaming"
    for flag, given in (
        ("--output-tokens-mean", s.output_tokens_mean != usual.output_tokens_mean),
        ("--output-tokens-stddev", s.output_tokens_stddev),
        ("--first-token-timeout", s.first_token_timeout_s != usual.first_token_timeout_s),
        ("--gpu-hour", s.gpu_hour),
        ("--tools", s.tools),
    ):
        if given:
            yield f"{kind} generates no tokens: leave out {flag}"
    for flag, given in (
        ("--session-turns-mean", s.session_turns_mean > 1),
        ("--shared-system-prompt-length", s.shared_system_prompt_length),
        ("--user-context-prompt-length", s.user_context_prompt_length),
    ):
        if given:
            yield f"{kind} has no conversation: leave out {flag}"
    if s.input_file and s.batch_size_text > 1:
        yield "--batch-size-text is of synthetic inputs: with --input-file each message of a row is an input"
    good = [("--goodput", condition.metric) for condition in s.rules.good]
    of_rules = [
        (f"SLO {str(rule)!r}", metric)
        for rule in s.rules.readable
        for metric in (rule.metric, *(condition.metric for condition in rule.given))
    ]
    for what, metric in dict.fromkeys((*of_rules, *good)):
        if instead := OF_OUTPUT.get(BY_WORD[metric].tag):
            yield f"{what}: {s.endpoint_type} has no {metric}, as nothing is generated: use {instead}"


def _media(s: Settings) -> Iterator[str]:
    """Of synthetic pictures and sounds."""
    if bool(s.image_width_mean) != bool(s.image_height_mean):
        yield "--image-width-mean and --image-height-mean need each other"
    for kind, mean, usual in (("image", s.image_width_mean, Settings()), ("audio", s.audio_length_mean, Settings())):
        others = (option.field for option in options_of(Settings) if option.field.startswith(f"{kind}_"))
        for name in others if not mean else ():
            if "mean" not in name and getattr(s, name) != getattr(usual, name):
                first = "--image-width-mean and --image-height-mean" if kind == "image" else "--audio-length-mean"
                yield f"--{name.replace('_', '-')} has nothing to apply to: give {first} too"
    try:
        kinds = s.media.kinds
    except ValueError as error:
        yield str(error)
        return
    pixels, samples = s.image_width_mean * s.image_height_mean, s.audio_length_mean * max(s.media.rates) * 1000
    if pixels > MAX_PIXELS:
        yield f"pictures of {pixels / 1e6:.0f} megapixels are too large: at most {MAX_PIXELS / 1e6:.0f} are made"
    if samples > MAX_SAMPLES:
        yield f"sounds of {samples / 1e6:.0f} million samples are too long: at most {MAX_SAMPLES / 1e6:.0f} are made"
    if kinds and s.input_file:
        yield "--image-... and --audio-... are of synthetic prompts: with --input-file a row names its own (image, audio)"


def _prefix_cache(s: Settings) -> Iterator[str]:
    """Of prompts that share a given part with those before."""
    flag = "--prefix-cache-hit-rate"
    if s.prefix_cache_hit_rate is None:
        of_it = {
            "--working-set": s.working_set,
            "--cache-block-size": s.cache_block_size,
            "--cache-tokens": s.cache_tokens,
        }
        for other, tokens in of_it.items():
            if tokens:
                yield f"{other} has nothing to apply to: give {flag} too"
        return
    if not s.prefix_cache_hit_rate and s.working_set:
        yield f"{flag} 0 repeats nothing: leave out --working-set"
    for other, given, why in (
        ("--input-file", s.input_file, "the prompts of a file are what they are"),
        ("--shared-system-prompt-length", s.shared_system_prompt_length, "it would add to the share"),
        ("--num-prefix-prompts", s.num_prefix_prompts, "they would add to the share"),
        (
            "--session-turns-mean",
            s.session_turns_mean > 1 or s.session_turns_stddev,
            "each turn repeats those before it",
        ),
        ("--model-mix", s.model_mix, "each model has a cache of its own"),
        (f"--endpoint-type {s.endpoint_type}", not s.generates, "it has no prefix cache"),
        ("--image-... and --audio-...", s.image_width_mean or s.audio_length_mean, "their tokens are not counted here"),
        (
            "--warmup-duration",
            s.warmup_duration,
            "it may end before every prefix was sent; --warmup-request-count adds",
        ),
        ("--sweep input-tokens", s.sweeps(INPUT), "its stages need other prefixes"),
        ("two arms", s.compares, "the two may have one cache or two"),
    ):
        if given:
            yield f"{flag} and {other} exclude each other: {why}"
    block, mean = s.cache_block_size or 1, round(s.synthetic_input_tokens_mean)
    most = most_blocks(mean, block) * block / mean
    if not s.seq_dist and not s.synthetic_input_tokens_stddev and s.prefix_cache_hit_rate > 100 * most:
        of = f" of blocks of {block}" if block > 1 else ""
        yield f"{flag} {s.prefix_cache_hit_rate:g} is more than prompts of {mean} tokens can repeat{of}: {most:.0%} at most"
