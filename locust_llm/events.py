"""The events of this library, beside Locust's own: listen to them in a locustfile.

from locust_llm import events

@events.first_token.add_listener
def on_first_token(user, name, ttft_s, **kw): ...
"""

from locust.event import EventHook


class FirstTokenEvent(EventHook):
    """The first chunk with content has arrived. Fired in its own greenlet, in the process that sent the request.

    :param user: the LLMUser
    :param name: the request's name
    :param request_id: its X-Request-Id
    :param ttft_s: time to first token in seconds, by the stamps of the stream reader
    """


class RecordEvent(EventHook):
    """A request has ended, in any way. Fired in the user's greenlet, once per request.

    :param user: the LLMUser
    :param record: the finished locust_llm.records.record.Record
    """


first_token = FirstTokenEvent()
record = RecordEvent()
