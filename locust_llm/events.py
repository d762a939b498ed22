"""The events of this library, beside Locust's own: listen to them in a locustfile.

from locust_llm import events

@events.first_token.add_listener
def on_first_token(user, name, ttft_s, **kw): ...

They are attributes of Locust's ``environment.events`` too.
"""

from locust.event import EventHook, Events


class FirstTokenEvent(EventHook):
    """The first chunk with content has arrived. Fired in its own greenlet, in the process that sent
    the request.

    :param user: the LLMUser
    :param name: the request's name
    :param request_id: its X-Request-Id
    :param ttft_s: time to first token in seconds, by the stamps of the stream reader
    """


class InterTokenLatencyEvent(EventHook):
    """A response is complete, and its ITL is known: it has two tokens or more. Fired in the user's
    greenlet, once per successful request, before the event of its record.

    :param user: the LLMUser
    :param name: the request's name
    :param request_id: its X-Request-Id
    :param itl_s: inter token latency in seconds, the mean of the request
    """


class RecordEvent(EventHook):
    """A request has ended, in any way. Fired in the user's greenlet, once per request.

    :param user: the LLMUser
    :param record: the finished locust_llm.records.record.Record
    """


first_token = FirstTokenEvent()
inter_token_latency = InterTokenLatencyEvent()
record = RecordEvent()


def extend_locust_events(hooks: Events) -> None:
    """Make the events attributes of Locust's own."""
    vars(hooks).update(
        first_token=first_token, inter_token_latency=inter_token_latency, record=record
    )
