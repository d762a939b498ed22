"""Prompt fields: the settings of what is sent: prompts, pictures, sessions, datasets."""

from typing import Annotated, Final

from .option import DELAY_MS, TOKENS, Option, Range
from .rule_fields import RuleFields

PIXELS: Final = Range(0, 16_384)
AUDIO_S: Final = Range(0, 600)


class PromptFields(RuleFields, frozen=True, kw_only=True, omit_defaults=False):
    """Of a run."""

    synthetic_input_tokens_mean: Annotated[
        float, Option("prompts", "Mean length of synthetic prompts", "8000", "tokens", TOKENS)
    ] = 550.0
    synthetic_input_tokens_stddev: Annotated[
        float, Option("prompts", "Its standard deviation", "1000", "tokens", Range(0, TOKENS.most))
    ] = 0.0
    output_tokens_mean: Annotated[float, Option("prompts", "Mean of max_tokens", "200", "tokens", TOKENS)] = 128.0
    output_tokens_stddev: Annotated[
        float, Option("prompts", "Its standard deviation", "50", "tokens", Range(0, TOKENS.most))
    ] = 0.0
    batch_size_text: Annotated[
        int,
        Option("prompts", "Inputs of a request: texts of embeddings, documents of rerank", "32", range=Range(1, 4096)),
    ] = 1
    image_width_mean: Annotated[
        float, Option("prompts", "Mean width of synthetic pictures; 0: there are none", "1024", "pixels", PIXELS)
    ] = 0.0
    image_width_stddev: Annotated[float, Option("prompts", "Its standard deviation", "200", "pixels", PIXELS)] = 0.0
    image_height_mean: Annotated[
        float, Option("prompts", "Mean height of synthetic pictures", "768", "pixels", PIXELS)
    ] = 0.0
    image_height_stddev: Annotated[float, Option("prompts", "Its standard deviation", "150", "pixels", PIXELS)] = 0.0
    image_batch_size: Annotated[
        int, Option("prompts", "Synthetic pictures in each request", "4", range=Range(0, 256))
    ] = 1
    image_format: Annotated[
        str,
        Option(
            "prompts",
            "Format of synthetic pictures; jpeg and random need the extra images",
            "jpeg",
            choices=("png", "jpeg", "random"),
        ),
    ] = "png"
    audio_length_mean: Annotated[
        float,
        Option("prompts", "Mean length of synthetic sounds; 0: there are none", "10", "seconds", AUDIO_S),
    ] = 0.0
    audio_length_stddev: Annotated[float, Option("prompts", "Its standard deviation", "3", "seconds", AUDIO_S)] = 0.0
    audio_sample_rates: Annotated[
        str, Option("prompts", "Sample rates of synthetic sounds, each has one of them", "16,44.1", "kHz,...")
    ] = "16"
    audio_format: Annotated[
        str, Option("prompts", "Format of synthetic sounds: 16 bits, one channel", "wav", choices=("wav",))
    ] = "wav"
    audio_batch_size: Annotated[
        int, Option("prompts", "Synthetic sounds in each request", "2", range=Range(0, 256))
    ] = 1
    seq_dist: Annotated[
        str | None,
        Option(
            "prompts",
            "Mix of lengths instead, as ISL,OSL:PERCENT pairs; a length may be mean|stddev, uniform:A..B or lognormal:...",
            "200|20,128:80;uniform:4000..16000,512:20",
        ),
    ] = None
    extra_inputs: Annotated[
        str | None,
        Option(
            "prompts", "More fields of the request's body, as pairs or a JSON object", "ignore_eos:true temperature:0.5"
        ),
    ] = None
    tools: Annotated[
        str | None, Option("prompts", "JSON list of tools, put into every request", "tools.json", "FILE", in_form=False)
    ] = None
    shared_system_prompt_length: Annotated[
        int | None, Option("prompts", "Length of a system prompt that all requests share", "1000", "tokens", TOKENS)
    ] = None
    user_context_prompt_length: Annotated[
        str | None,
        Option(
            "prompts",
            "Length of what each session begins with, of its own: a number of tokens, or a distribution as in --seq-dist",
            "lognormal:4000|2500",
            "LENGTH",
        ),
    ] = None
    num_prefix_prompts: Annotated[
        int | None, Option("prompts", "Number of prefixes; each prompt begins with one", "10", range=Range(1, 10**5))
    ] = None
    prefix_prompt_length: Annotated[
        int | None, Option("prompts", "Length of each of these prefixes", "2000", "tokens", TOKENS)
    ] = None
    prefix_cache_hit_rate: Annotated[
        float | None,
        Option("prompts", "Share of the input tokens that repeats earlier ones", "80%", "percent", Range(0, 99)),
    ] = None
    working_set: Annotated[
        int | None,
        Option("prompts", "Length of all that repeats", "200000", "tokens", TOKENS, otherwise="10 prefixes"),
    ] = None
    cache_block_size: Annotated[
        int | None, Option("prompts", "Block of the prefix cache", "32", "tokens", TOKENS, otherwise="vLLM's own or 16")
    ] = None
    cache_tokens: Annotated[
        int | None, Option("prompts", "Size of the prefix cache", "500000", "tokens", TOKENS, otherwise="vLLM's own")
    ] = None
    tokenizer: Annotated[
        str | None,
        Option("prompts", "tokenizer.json or its folder, for prompts of exact length", "llama/", "FILE", in_form=False),
    ] = None
    input_file: Annotated[
        str | None,
        Option(
            "prompts",
            "Dataset: ShareGPT, OpenAI-style or multi-turn JSONL, a trace of requests or of agents, an access log",
            "prompts.jsonl",
            "FILE",
            in_form=False,
        ),
    ] = None
    custom_dataset_type: Annotated[
        str | None, Option("prompts", "Format of the dataset", "mooncake_trace", otherwise="recognised")
    ] = None
    dataset_columns: Annotated[
        str | None, Option("prompts", "Columns of an access log", "timestamp=ts,input_tokens=prompt_tokens")
    ] = None
    dataset_sampling_strategy: Annotated[
        str, Option("prompts", "Order of the dataset's rows", "shuffle", choices=("sequential", "shuffle", "random"))
    ] = "sequential"
    skip_broken_rows: Annotated[bool, Option("prompts", "Leave broken rows of the dataset out, and count them")] = False
    idle_cap: Annotated[
        float | None, Option("prompts", "Longest wait between turns of a dataset", "60", "seconds", Range(0, 10**7))
    ] = None
    trajectory_start: Annotated[
        str | None,
        Option("prompts", "Begin each session of a dataset in its middle, after this share of its turns", "0.25..0.75"),
    ] = None
    session_turns_mean: Annotated[
        float, Option("prompts", "Mean number of turns, with real replies as history", "3", range=Range(1, 10**5))
    ] = 1.0
    session_turns_stddev: Annotated[float, Option("prompts", "Its standard deviation", "1", range=Range(0, 10**5))] = (
        0.0
    )
    session_turn_delay_mean: Annotated[
        float, Option("prompts", "Mean think time between turns", "2000", "ms", DELAY_MS)
    ] = 0.0
    session_turn_delay_stddev: Annotated[float, Option("prompts", "Its standard deviation", "500", "ms", DELAY_MS)] = (
        0.0
    )
    responses_state: Annotated[
        str,
        Option(
            "prompts",
            "Who keeps the conversation of Responses: client sends all of it in each turn, server goes on by "
            "previous_response_id",
            "server",
            choices=("client", "server"),
        ),
    ] = "client"
    session_header: Annotated[
        str | None,
        Option(
            "prompts", "Header for the id of the session, by name or as of aiperf, mlperf, dynamo", "mlperf", "NAME"
        ),
    ] = None
    echo_header: Annotated[
        str | None,
        Option(
            "prompts", "Header of an answer that its session sends back in its next turn", "x-session-token", "NAME"
        ),
    ] = None
