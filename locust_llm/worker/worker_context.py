"""Worker context: what the users of one process share: gate, permits, prompts, and the way of
finished records.

It begins closed. Users that Locust spawns before the master's Begin has come (in a worker that
joins late) wait.
"""

import logging
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from random import Random
from typing import Any, Final
from weakref import WeakKeyDictionary

from locust.env import Environment
from locust.runners import LocalRunner

from gevent.event import Event
from msgspec.structs import replace

from locust_llm.access.headers_and_api_key import (
    read_candidate_headers,
    read_request_headers,
    read_tenant_headers,
)
from locust_llm.access.proxy_notes import list_passed_proxies
from locust_llm.answers.session_markers import MarkerKey
from locust_llm.client.reader.reader_choice import (
    reader_failure,
    reader_kind,
    reads_so_far,
    start_new_reader,
)
from locust_llm.gate.gate import GateClosed
from locust_llm.gate.request_seconds import RequestSeconds
from locust_llm.gate.shares import GateLease, Share
from locust_llm.locust_adapter.command_line_parser import build_settings
from locust_llm.records.control_message import ControlMessage
from locust_llm.records.failure_kinds import FailureKinds
from locust_llm.records.machine import Machine, detect_machine
from locust_llm.records.phase_plan import PROFILING, WARMUP, label_phase, stage_of_phase
from locust_llm.records.record import Record
from locust_llm.records.run_facts import ProcessHealth
from locust_llm.server.refused_request_fields import (
    REFUSED,
    RequestForm,
    added_form_changes,
    learn_from_refusal,
)
from locust_llm.settings.ab_arms import TrialBlock
from locust_llm.settings.extra_inputs import collect_extra_inputs
from locust_llm.settings.run_options import Settings
from locust_llm.settings.server_address import normalise_base_url
from locust_llm.text.hide_secrets import collect_secrets
from locust_llm.text.sanitise import sanitise_text
from locust_llm.wire.clock_sync import SyncedClock, clock_id
from locust_llm.wire.reliable_delivery import IncomingPost, OutgoingPost
from locust_llm.wire.worker_messages import (
    LOCAL,
    TO_CONTROL,
    TO_SENDER,
    Arrivals,
    ArrivalsReturned,
    AskAgain,
    Begin,
    BeginFailed,
    Cut,
    Ended,
    EndRun,
    FormLearnt,
    Grant,
    PhaseOver,
    Records,
    Refused,
    ReleaseRequests,
    ReleaseSessions,
    ReliableMessage,
    Renewal,
    RequestsReturned,
    RequestsWanted,
    Sessions,
    SessionsReturned,
    SessionsWanted,
    StageBegin,
    StageHealth,
    StartSpread,
    Status,
    ToSender,
    pack_message,
    unpack_to_worker,
)
from locust_llm.worker.ab_targets import VariantTarget, make_variant_targets
from locust_llm.workload.conversation import ConversationSource
from locust_llm.workload.length_distributions import combine_lengths, normal_length
from locust_llm.workload.marked_session import MarkedSession
from locust_llm.workload.synthetic_prompts import Prompts

from .answer_inspection import AnswerInspector
from .precise_timer import Alarm, ExclusiveTurns
from .process_health import HealthMonitor, find_server_processes
from .prompt_source import make_prompts, make_sessions
from .reference_streams import ReferenceStreams
from .request_to_send import PreparedHead
from .schema_checks import SchemaChecker
from .send_permits import Permit, PermitQueue, SessionQueue
from .session_affinity import Affinity
from .tenant_choice import TenantAssigner
from .user_start_times import StartTimes

logger = logging.getLogger("locust_llm")

SOON_S: Final = 0.3
"""Users are added for arrivals that are due within this time and find no free user."""
MAX_NAMED_SESSIONS: Final = 10_000
"""The markers of so many sessions with names are kept."""
MESSAGE_BYTES: Final = 300
"""The bytes of a server's message in a note."""
STATUS_LAGS: Final = 200
"""A status uses so many last lags of the event loop: ten seconds of them."""


class WorkerContext:
    """The context of a process for all runs. ``begin`` prepares it for the next one."""

    def __init__(
        self,
        environment: Environment,
        settings: Settings,
        on_record: Sequence[Callable[[Record], object]] = (),
        on_counts: Callable[[int, int, int], object] = lambda admitted, begun, ended: None,
        *,
        worker: str = LOCAL,
        shared: bool = False,
    ) -> None:
        """``settings`` hold until a run's settings come. ``on_record`` functions get each finished
        record. ``on_counts`` functions get the numbers of admitted requests, and of begun and ended
        sessions.

        ``shared``: other processes have shares of the limit too, so nothing is admitted without a
        lease.
        """
        self._environment, self._on_record, self._on_counts = environment, on_record, on_counts
        self.worker, self._shared = worker, shared
        self.settings = settings
        self._headers: tuple[int, Mapping[str, str]] | None = None
        self._strayed = -1
        """The run in which a user with another address was logged."""
        self.epoch = 0
        self._alarm: Alarm | None = None
        self._sentinels = ReferenceStreams()
        self.clock = SyncedClock()
        self.schemas = SchemaChecker()
        self.urgent = Event()
        """Set when the controller needs a status at once."""
        self._renew()

    def _renew(self) -> None:
        self.affinity = Affinity({"": VariantTarget("", "", None, ())})
        self._forms: dict[str, RequestForm] = {}
        """What was learnt during the load, by arm."""
        self.tenants = TenantAssigner()
        self._place = 0
        self._salt = ""
        self._goes_on = False
        """The load of the warmup goes on into profiling."""
        self.trace = ""
        self.closed = False
        self.turned_away = 0
        self._decoding: set[str] = set()
        """The ids of open requests that had their first chunk."""
        self._decoding_seconds = RequestSeconds(time.monotonic)
        self.done = 0  # requests that the gate has admitted, and that are over
        self.ttfts_s: list[float] = []  # of the first chunks since the last status
        self._ttfts_from_due_s: list[float] = []
        self._load_reads = 0
        """The reads of the stream reader so far, at least, without those of reference streams."""
        self._due_of_awaited: dict[str, float] = {}
        """By id: when each request was due that awaits its first chunk (monotonic seconds)."""
        # what must come, of this run
        self.incoming = IncomingPost()
        self._outgoing = OutgoingPost(self._transmit)
        self.failure = ""  # why this process can send nothing more
        # for the progress line: where a schedule of the users' own is, such as the probe's
        self.activity = ""
        self.lease = GateLease(self.urgent, shared=self._shared, on_enter=self._count)
        self.gate = self.lease.gate
        self.answered_at = time.monotonic()
        """When the controller last answered."""
        self.permits = PermitQueue(self._want)
        self.starts = StartTimes()
        self._early: list[Arrivals] = []
        self.tickets = SessionQueue(self._want_sessions, self._count)
        self._watch: HealthMonitor | None = None
        self._machine: Machine | None = None
        self._missed = self._stage = 0
        self._stage_watch: HealthMonitor | None = None
        self.failure_kinds = FailureKinds()
        """The kinds for Locust's table, and for a sample of each."""
        self.turns = ExclusiveTurns()
        self.retry_random = Random()
        self.heads: dict[tuple[str, str], PreparedHead] = {}
        """By address and tenant: the newest one of any user. The next user's is mostly the same."""
        self.prompts: Prompts
        self.sessions: ConversationSource
        self.markers: MarkerKey | None = None
        """Makes and finds session markers. None: answers are not checked."""
        self.inspector: AnswerInspector | None = None
        self._marked = OrderedDict[str, MarkedSession]()
        """The sessions that a locustfile has named, by their names."""
        self.extra: dict[str, Any] = {}
        """Further fields of every request's body."""
        self.counts_sessions = False
        """The controller deals out the sessions: each of the dataset once, or the requested
        number."""

    def _count(self) -> None:
        self._on_counts(self.gate.admitted, self.tickets.begun, self.tickets.ended)

    def renew(self, renewal: Renewal) -> None:
        """Take the answer to a status: the share is valid for some seconds more, and the clocks can
        be compared."""
        self.answered_at = time.monotonic()
        self.clock.measure(renewal.at, renewal.unix_s, self.answered_at)
        self._outgoing.heard(renewal.heard)
        early, self._early = self._early, []
        for arrivals in early:
            self.add_arrivals(arrivals)
        self.lease.renew(renewal.share, renewal.at)

    @property
    def clock_offset_s(self) -> float:
        """The seconds to add to a stamp of this process to get Unix time, as the controller has
        it."""
        return self.clock.offset_s

    def begin(self, epoch: int, order: Begin) -> bool:
        """Begin a run. False: it is on already. Its limit and its first share come in their own
        messages."""
        if epoch == self.epoch:
            return False
        if self.epoch or self.closed:
            self._renew()
        self.epoch = epoch
        start_new_reader()
        self._machine = detect_machine()
        self.settings = s = order.settings
        self._watch = HealthMonitor(servers=partial(find_server_processes, s.addresses))
        self._goes_on = s.warmup_goes_on
        self.trace, self._place, self._salt = order.trace, order.worker, order.salt
        self.starts = StartTimes(order.worker, s.processes)
        self.schemas.unchecked = 0
        self._sentinels.begin(s.selftest, s.run_time_s)
        arms = make_variant_targets(
            s, order.survey, read_candidate_headers(self._environment.parsed_options)
        )
        self.affinity = Affinity(arms, s.hosts, s.echo_header, first=order.worker)
        self.prompts = make_prompts(order)
        if order.marker_key:
            self.markers = MarkerKey(order.marker_key, order.worker)
            self.inspector = AnswerInspector(self.markers, self.send, keep_text=s.keep_text)
        self.sessions = make_sessions(order, self.prompts, self.turns.take, self.markers)
        self.tenants = TenantAssigner(
            s, read_tenant_headers(self._environment.parsed_options), order.worker
        )
        self.extra = collect_extra_inputs(s)
        self.counts_sessions = bool(
            s.input_file or s.num_sessions or s.prefix_cache_hit_rate is not None
        )
        self._random = Random(
            None if s.random_seed is None else f"{s.random_seed}/{order.worker}/cancel"
        )
        if not self._shared or (order.clock and order.clock == clock_id()):
            self.clock.same(order.clock_offset_s)
        self.answered_at = time.monotonic()
        self.urgent.set()
        self.permits.ask_again()
        return True

    def begin_stage(self, number: int, input_tokens: float | None) -> None:
        """Begin a stage (0: none) with prompts of so many tokens. The health in the stage before is
        reported."""
        if number == self._stage:
            return
        if self._stage_watch is not None:
            health = self._stage_watch.stop(self.worker, self._stage)
            self.send(StageHealth(replace(health, certificate=self._sentinels.stage())))
        self._stage = number
        # to look at all programs takes milliseconds, which are not to be had under load
        self._stage_watch = HealthMonitor(programs=dict) if number else None
        self._sentinels.begin_stage()
        s = self.settings
        if (block := s.block(number)) is not None:
            self._begin_block(block, number)
        if input_tokens is not None:
            sizes = (
                (input_tokens, s.synthetic_input_tokens_stddev),
                (s.output_tokens_mean, s.output_tokens_stddev),
            )
            self.prompts.resize(combine_lengths(normal_length(*sizes[0]), normal_length(*sizes[1])))

    def _begin_block(self, block: TrialBlock, number: int) -> None:
        """Both blocks of a pair draw the same lengths. Their texts differ where they would meet in
        one server's cache."""
        s = self.settings
        seed = f"{s.random_seed}/{self._place}/pair {block.pair}"
        block_salt = "" if s.candidate and s.candidate != s.host else f"[{number:03}]"
        self.prompts.begin_block(seed, self._salt + block_salt)
        self.sessions.begin_block(seed)
        self.tenants.begin_block(block, seed)
        self._random = Random(f"{seed}/cancel")

    def block(self, phase: str) -> TrialBlock | None:
        """The block in which this phase's requests are sent. None: the run has no arms."""
        return self.settings.block(stage_of_phase(phase))

    def marked_session(self, name: str = "") -> MarkedSession:
        """The marker of a session that a locustfile names. Without a name it is a new session."""
        if not name or self.markers is None:
            return MarkedSession(self.markers)
        marked = self._marked.setdefault(name, MarkedSession(self.markers))
        self._marked.move_to_end(name)
        if len(self._marked) > MAX_NAMED_SESSIONS:
            self._marked.popitem(last=False)
        return marked

    def form(self, side: VariantTarget) -> RequestForm:
        """The form of requests to this arm, as far as is known now."""
        return self._forms.get(side.name, side.form)

    def learns_form(self, side: VariantTarget, sent: RequestForm, record: Record) -> bool:
        """Whether this answer to a request of the form ``sent`` refuses a field that another form
        leaves out or renames. All later requests then have that form, and this one may be sent
        again.

        The first request before the load usually finds this out. With --no-probe there is none.
        """
        if record.status not in REFUSED:
            return False
        known = self.form(side)
        form = learn_from_refusal(known, self.settings, record.status, record.error)
        if form != known:
            self._forms[side.name] = form
            message = sanitise_text(
                record.error,
                collect_secrets(self.own_headers, self.own_headers),
                most=MESSAGE_BYTES,
            )
            self.send(FormLearnt(side.name, added_form_changes(known, form), message))
        return form != sent

    def side(self, block: TrialBlock | None, session: str = "") -> VariantTarget:
        """The target of the next request of this block and session."""
        target = self.affinity.side(block, session)
        return target if target.address else target._replace(address=self.address)

    @property
    def own_headers(self) -> dict[str, str]:
        """The headers of all arms and tenants. No written text may hold their values."""
        headers = dict(self.headers)
        for side in self.affinity.sides.values():
            headers |= {f"{side.name} {name}": value for name, value in side.headers.items()}
        return headers | self.tenants.secrets

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers of every request. They are read once a run when the first user comes, as the
        master's options arrive with the users."""
        if self._headers is None or self._headers[0] != self.epoch:
            self._headers = self.epoch, read_request_headers(self._environment.parsed_options)
        return self._headers[1]

    @property
    def address(self) -> str:
        """The address of the server, queried at the start, whatever ``host`` a class or Locust has
        since got."""
        return self.settings.host or normalise_base_url(self._environment.host or "")

    def keeps_address(self, host: str | None, whose: str) -> None:
        """Log once a run that the address stays although somebody has set another (Locust's ``POST
        /user`` can)."""
        if (
            host
            and self.address
            and self._strayed != self.epoch
            and normalise_base_url(host) != self.address
        ):
            self._strayed = self.epoch
            logger.warning(
                f"{whose} has the host {normalise_base_url(host)}, which is ignored: the requests "
                f"of this run go to {self.address}, the address that was checked at the start"
            )

    def await_first_chunk(self, request_id: str, due_at: float | None) -> None:
        """Note a request that will be sent. ``due_at``: monotonic seconds; None: now."""
        self._due_of_awaited[request_id] = time.monotonic() if due_at is None else due_at

    def await_no_longer(self, request_id: str) -> None:
        """Note that the request has its first chunk, or is over without one."""
        self._due_of_awaited.pop(request_id, None)

    def first_chunk(self, request_id: str, ttft_s: float, from_due_s: float) -> None:
        """Note a first chunk. Called in the event loop; it must not block."""
        self.await_no_longer(request_id)
        self._decoding.add(request_id)
        self._decoding_seconds.become(self.decoding)
        self.ttfts_s.append(ttft_s)
        self._ttfts_from_due_s.append(from_due_s)

    def finished(self, record: Record) -> None:
        # one that was given up may have a chunk in its record that came behind that
        self._decoding.discard(record.id)
        self._decoding_seconds.become(self.decoding)
        for take in self._on_record:
            take(record)

    @property
    def decoding(self) -> int:
        """The open requests that had their first chunk."""
        return len(self._decoding)

    def _count_awaited(self, now: float) -> dict[int, int]:
        """How many requests, sent or not, have waited for their first chunk since they were due, by
        hundredths of a second."""
        dues = chain(self._due_of_awaited.values(), self.permits.list_overdue(now))
        return Counter(int((now - due_at) * 100) for due_at in dues if due_at <= now)

    def add_arrivals(self, dealt: Arrivals) -> None:
        """Add arrivals. They wait until the clock offset is known."""
        if not self.clock.known:
            self._early.append(dealt)
            return
        zero = dealt.started_at - self.clock_offset_s
        self.permits.arrive(
            Permit(dealt.phase, zero + at_s, slot, item, draws)
            for at_s, slot, item, draws in dealt.arrivals
        )

    def wait_until(self, at: float) -> None:
        """Sleep until a moment of the monotonic clock. Raises GateClosed if the run ends before."""
        if self._alarm is None:  # after any fork
            self._alarm = Alarm()
        self._alarm.wait_until(at)
        if self.closed:
            raise GateClosed

    def item(self, phase: str) -> bytes | None:
        """The next session, packed. None: a synthetic one. Raises GateClosed when there are no
        more."""
        if not self.counts_sessions:
            return None
        begin = self.tickets.take()
        while begin.phase != self.begun_in(phase):  # of the warmup, and it is over
            begin = self.tickets.take()
        return begin.item

    def session_ended(self, permit: Permit, left: int, *, dealt: bool) -> None:
        """Note the end of a session. ``left`` turns were not sent."""
        if permit.item is not None:
            if left:  # the schedule had counted them
                self.send(RequestsReturned(permit.phase, left))
        elif dealt:
            self.tickets.end(self.begun_in(permit.phase))

    def begun_in(self, phase: str) -> str:
        """The phase in which the load of this one began: its users, and its sessions."""
        return WARMUP if phase == PROFILING and self._goes_on else phase

    def cancel_after_s(self, phase: str) -> float | None:
        """The seconds after which a request is cancelled on purpose, drawn for each request."""
        rate = self.settings.request_cancellation_rate
        if rate is None or label_phase(phase) != PROFILING or self._random.random() * 100 >= rate:
            return None
        return self.settings.request_cancellation_delay

    def release_requests(self, phase: str) -> None:
        """Release requests of ``phase``, as others wait for them."""
        if self.permits.phase == phase and (left := self.permits.release_idle()):
            self.send(RequestsReturned(phase, left))

    def release_sessions(self, phase: str) -> None:
        """Release sessions of ``phase``, as others wait for them."""
        self.send(SessionsReturned(self.tickets.release_idle(phase), self.tickets.counts))

    def give_back(self, users: int) -> None:
        """Give back what none of so many users here can send."""
        phase = self.permits.phase
        # then users come where arrivals wait
        comes = self.settings.open_loop and self.settings.users is None
        if not comes and (released := self.permits.unassignable(users)):
            arrivals = [
                (
                    (permit.due_at or 0.0) + self.clock_offset_s,
                    permit.slot,
                    permit.item,
                    permit.draws,
                )
                for permit in released
            ]
            self.send(ArrivalsReturned(phase, arrivals))
        if users == 0 and (left := self.permits.release_all()):
            self.send(RequestsReturned(phase, left))

    def end_phase(self, phase: str) -> None:
        """Start nothing new in this phase."""
        if self.permits.phase == phase and (left := self.permits.release_all(arrivals=True)):
            self.send(RequestsReturned(phase, left))

    def status(
        self, *, users: int = 0, at: float | None = None, records: Records | None = None
    ) -> Status:
        """The status for the progress line and the controller. ``users`` are the users here. ``at``
        is now (monotonic) if the status is answered. ``records``: those that go with it."""
        ttfts_s, self.ttfts_s = self.ttfts_s, []
        from_due_s, self._ttfts_from_due_s = self._ttfts_from_due_s, []
        # a read that was counted stays counted when a reference stream begins
        self._load_reads = max(self._load_reads, reads_so_far() - self._sentinels.most_reads)
        now = time.monotonic()
        return Status(
            gate=self.lease.status(),
            admitted=self.gate.admitted,
            over=self.done,
            decoding=self.decoding,
            request_s=(
                self.gate.used_seconds.total,
                self.gate.waiting_seconds.total,
                self._decoding_seconds.total,
            ),
            ttfts_s=ttfts_s[-1000:],
            ttfts_from_due_s=from_due_s[-1000:],
            awaited=self._count_awaited(now),
            unreserved=self.permits.unreserved(now + SOON_S),
            sessions=self.tickets.counts,
            users=users,
            reads=self._load_reads,
            clock_error_s=self.clock.stated_s,
            health=None
            if self._watch is None
            else self._watch.so_far(self.worker, lags=STATUS_LAGS),
            failure=reader_failure() or self.failure,
            activity=self.activity,
            at=at,
            heard=self.incoming.heard,
            records=records,
        )

    def close(self) -> None:
        """Start nothing new from here on."""
        self.closed = True
        self.gate.close()
        self.tenants.close()
        self._missed += self.permits.close()
        self.tickets.close()
        if self._alarm is not None:
            self._alarm.wake_all()

    def ended(self, records: int = 0) -> Ended:
        """The message at the end of a run. ``records`` were made for the controller's inbox."""
        return Ended(
            turned_away=self.turned_away,
            missed=self._missed,
            records=records,
            unchecked_answers=self.schemas.unchecked,
            health=None if self._watch is None else self._health(self._watch),
            failure=reader_failure() or self.failure,
        )

    def _health(self, watch: HealthMonitor) -> ProcessHealth:
        """The health over the whole run."""
        return replace(
            watch.stop(self.worker), certificate=self._sentinels.end(), machine=self._machine,
            clock_error_s=self.clock.stated_s, proxy=list_passed_proxies(self.settings),
            reader=reader_kind(),
        )  # fmt: skip

    def send(self, message: ControlMessage, epoch: int | None = None) -> None:
        """Send a message of this run to the controller. Without a runner it is lost, as the
        greeting follows."""
        if isinstance(message, ReliableMessage) and self._shared:
            self._outgoing.post(partial(pack_message, self.epoch, message))
        else:
            self._transmit(pack_message(self.epoch if epoch is None else epoch, message))

    def _transmit(self, packed: bytes) -> None:
        if self._environment.runner is not None:
            self._environment.runner.send_message(TO_CONTROL, packed)

    def _want(self) -> None:
        if self.epoch:
            self.send(RequestsWanted())

    def _want_sessions(self) -> None:
        if self.epoch:
            self.send(SessionsWanted())


_senders: WeakKeyDictionary[Environment, WorkerContext] = WeakKeyDictionary()


def get_worker_context(environment: Environment) -> WorkerContext:
    """The context of this process. It begins closed where the plugin is not attached."""
    if environment not in _senders:
        attach_worker_context(
            environment, WorkerContext(environment, build_settings(environment.parsed_options))
        )
    return _senders[environment]


def attach_worker_context(environment: Environment, sender: WorkerContext) -> None:
    """Make this the context of the process."""
    _senders[environment] = sender


# -- the messages of the controller -------------------------------------------------------------------


def receive_from_control(
    runner: Any,
    sender: WorkerContext,
    on_process: Callable[[ControlMessage], object],
    on_begin: Callable[[Begin], object] = lambda begin: None,
) -> None:
    """``on_begin`` is called for each new run. ``on_process`` gets messages for the process instead
    of its sender."""

    def listener(msg: Any, **kw: Any) -> None:
        try:
            epoch, message, number = unpack_to_worker(msg.data)
        except ValueError as error:
            logger.error(f"a message of the master was ignored: {error}")
            return
        if isinstance(message, Begin):
            _begin(runner, sender, epoch, message, on_begin)
        if number and not (epoch == sender.epoch and sender.incoming.take(number)):
            return  # of another run, or it was here, or one before it is missing
        if isinstance(message, Refused | EndRun | Cut) or (
            epoch == sender.epoch and not _handle_message(sender, message)
        ):
            on_process(message)

    runner.register_message(TO_SENDER, listener)


def _begin(
    runner: Any,
    sender: WorkerContext,
    epoch: int,
    begin: Begin,
    on_begin: Callable[[Begin], object],
) -> None:
    try:
        if sender.begin(epoch, begin):
            on_begin(begin)
    except Exception as error:
        if isinstance(runner, LocalRunner):  # then this is a call of the controller's
            raise
        logger.exception("this worker cannot start")
        sender.send(BeginFailed(f"{type(error).__name__}: {error}"), epoch)


def _handle_message(sender: WorkerContext, message: ToSender) -> bool:
    """What a sender does with each message of the controller. False: the message is not for it."""
    match message:
        case Begin():
            pass  # it has
        case StageBegin():
            sender.begin_stage(message.number, message.input_tokens)
        case Share():
            sender.lease.renew(message)
        case Renewal():
            sender.renew(message)
            return False  # the process has more to do with it
        case Grant():
            sender.permits.grant(message.phase, message.count)
        case StartSpread():
            sender.starts.spread(message.phase, message.spacing_s, message.longest_spacing_s)
        case AskAgain():
            sender.permits.ask_again()
            sender.tickets.ask_again(sender.begun_in(message.phase))
        case Arrivals():
            sender.add_arrivals(message)
        case Sessions():
            sender.tickets.grant(message.phase, message.items, over=message.last)
        case ReleaseRequests():
            sender.release_requests(message.phase)
        case ReleaseSessions():
            sender.release_sessions(message.phase)
        case PhaseOver():
            sender.end_phase(message.phase)
        case _:
            return False
    return True
