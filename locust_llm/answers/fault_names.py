"""Fault names: what can be wrong in one answer, each with one sentence for the reader of a
report."""

from typing import Final

FOREIGN_MARKER: Final = "foreign_marker"
DUPLICATE_ID: Final = "duplicate_id"
ID_SWITCHED: Final = "id_switched"
WRONG_MODEL: Final = "wrong_model"
WRONG_USAGE: Final = "wrong_usage"
PROMPT_TOKENS_DIFFER: Final = "prompt_tokens_differ"
TOOL_ARGUMENTS: Final = "tool_arguments"
LOGPROBS_TEXT: Final = "logprobs_text"
LOST_DELTA: Final = "lost_delta"
DOUBLED_DELTA: Final = "doubled_delta"
REORDERED_DELTA: Final = "reordered_delta"
BROKEN_TEXT: Final = "broken_text"

FAULT_SENTENCES: Final[dict[str, str]] = {
    FOREIGN_MARKER: "The answer contains the session marker of another session.",
    DUPLICATE_ID: "Another answer of the run has the same response id.",
    ID_SWITCHED: "The response id changes in the middle of the stream.",
    WRONG_MODEL: "The answer names a model that the request did not ask for.",
    WRONG_USAGE: "The token counts in usage do not fit the answer that was sent.",
    PROMPT_TOKENS_DIFFER: "The server counts another number of prompt tokens for the same prompt.",
    TOOL_ARGUMENTS: "The arguments of a tool call are not valid JSON.",
    LOGPROBS_TEXT: "The tokens listed in logprobs do not join to the text of the answer.",
    LOST_DELTA: "A part of the answer is missing from the stream.",
    DOUBLED_DELTA: "A part of the answer came twice in the stream.",
    REORDERED_DELTA: "Two parts of the answer came in the wrong order.",
    BROKEN_TEXT: "The text is broken: it contains replacement characters.",
}
"""The sentence of each fault, in the order of a report: the gravest first."""
