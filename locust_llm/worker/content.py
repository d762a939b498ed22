"""Content: the prompts of one process in a run, and the sessions whose turns they are."""

from collections.abc import Callable

from locust_llm.wire.messages import Begin
from locust_llm.workload import tokens
from locust_llm.workload.conversation import ConversationSource
from locust_llm.workload.lengths import parse_length, parse_length_mix
from locust_llm.workload.media import MediaStore
from locust_llm.workload.mix import parse_model_mix
from locust_llm.workload.pictures import MediaGenerator
from locust_llm.workload.prompts import Prompts


def make_prompts(order: Begin) -> Prompts:
    """The process's own prompts among all processes'. Raises ValueError and OSError, such as for a
    missing tokenizer."""
    s = order.settings
    return Prompts(
        order.survey.lengths,
        parse_length_mix(s.seq_dist) if s.seq_dist else None,
        input_tokens=(s.synthetic_input_tokens_mean, s.synthetic_input_tokens_stddev),
        output_tokens=(s.output_tokens_mean, s.output_tokens_stddev),
        seed=s.random_seed, worker=order.worker, salt=order.salt,
        system_tokens=s.shared_system_prompt_length or 0, prefixes=s.num_prefix_prompts or 0,
        prefix_tokens=s.prefix_prompt_length or 0,
        context=parse_length(s.user_context_prompt_length) if s.user_context_prompt_length else None,
        tokenizer=tokens.load_tokenizer(s.tokenizer) if s.tokenizer else None,
        batch=s.texts,
        media=MediaGenerator(s.media, None if s.random_seed is None else f"{s.random_seed}/{order.worker}/media"),
    )  # fmt: skip


def make_sessions(order: Begin, prompts: Prompts, pause: Callable[[], None]) -> ConversationSource:
    """``pause`` runs between two pieces of work that would hold up the event loop."""
    s = order.settings
    return ConversationSource(
        prompts,
        turns=(s.session_turns_mean, s.session_turns_stddev),
        delay_ms=(s.session_turn_delay_mean, s.session_turn_delay_stddev),
        seed=s.random_seed,
        worker=order.worker,
        models=parse_model_mix(s.model_mix) if s.model_mix else None,
        parts=MediaStore(s.input_file, pause=pause).parts if s.input_file else None,
    )
