"""Prompt source: the prompts of one process in a run, and the sessions whose turns they are."""

from collections.abc import Callable

from locust_llm.client.event_loop_yields import can_wait
from locust_llm.wire.worker_messages import Begin
from locust_llm.workload import local_tokenizer
from locust_llm.workload.conversation import ConversationSource
from locust_llm.workload.generated_images_and_audio import MediaGenerator
from locust_llm.workload.images_and_audio import MediaStore
from locust_llm.workload.length_distributions import parse_length, parse_length_mix
from locust_llm.workload.marked_session import SessionMarkers
from locust_llm.workload.model_and_tenant_mix import parse_model_mix
from locust_llm.workload.synthetic_prompts import Prompts


def make_prompts(order: Begin) -> Prompts:
    """The process's own prompts among all processes'. Raises ValueError and OSError, such as for a
    missing tokenizer."""
    settings = order.settings
    return Prompts(
        order.survey.lengths,
        parse_length_mix(settings.seq_dist) if settings.seq_dist else None,
        input_tokens=(settings.synthetic_input_tokens_mean, settings.synthetic_input_tokens_stddev),
        output_tokens=(settings.output_tokens_mean, settings.output_tokens_stddev),
        seed=settings.random_seed, worker=order.worker, salt=order.salt,
        system_tokens=settings.shared_system_prompt_length or 0, prefixes=settings.num_prefix_prompts or 0,
        prefix_tokens=settings.prefix_prompt_length or 0,
        context=parse_length(settings.user_context_prompt_length) if settings.user_context_prompt_length else None,
        tokenizer=local_tokenizer.load_tokenizer(settings.tokenizer) if settings.tokenizer else None,
        batch=settings.texts,
        media=MediaGenerator(settings.media, None if settings.random_seed is None else f"{settings.random_seed}/{order.worker}/media"),
        pause=can_wait.take,
    )  # fmt: skip


def make_sessions(
    order: Begin,
    prompts: Prompts,
    pause: Callable[[], None],
    markers: SessionMarkers | None = None,
) -> ConversationSource:
    """``pause`` runs between two pieces of work that would hold up the event loop. ``markers`` are
    for synthetic prompts: those of a file are sent as they are, unless the user asks."""
    settings = order.settings
    return ConversationSource(
        prompts,
        turns=(settings.session_turns_mean, settings.session_turns_stddev),
        delay_ms=(settings.session_turn_delay_mean, settings.session_turn_delay_stddev),
        seed=settings.random_seed,
        worker=order.worker,
        models=parse_model_mix(settings.model_mix) if settings.model_mix else None,
        parts=MediaStore(settings.input_file, pause=pause).parts if settings.input_file else None,
        markers=markers if settings.mark_replayed or not settings.input_file else None,
    )
