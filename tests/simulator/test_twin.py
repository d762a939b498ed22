"""The scheduler against a twin that counts everything one by one, sequence by sequence and block by
block."""

from collections import deque
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples
from support.stepping import added, end, schedule

from locust_llm.simulator.scheduling.batching_policies import POLICIES
from locust_llm.simulator.scheduling.scheduler_queues import Scheduler, SchedulerConfig
from locust_llm.simulator.scheduling.sequence import Sequence
from locust_llm.simulator.scheduling.waiting_order import make_waiting_queue

BLOCK = 16


@dataclass(eq=False)
class Block:
    key: int | None = None
    users: int = 0


@dataclass(eq=False)
class Member:
    sequence: Sequence
    number: int
    computed: int = 0
    output: int = 0
    blocks: list[Block] = field(default_factory=list)
    preempted: int = 0
    named: int = 0
    gone: bool = False

    @property
    def tokens(self):
        return self.sequence.num_prompt_tokens + self.output

    @property
    def rank(self):
        return self.sequence.priority, self.number


class Twin:
    """vLLM V1's loops as they are written there: no sums, no sets of those that decode, every block
    an object. That they are vLLM's own says `tests/e2e/test_real_scheduler.py`."""

    def __init__(self, config, num_blocks, *, priority):
        self.config, self.priority = config, priority
        self.free = deque(Block() for _ in range(num_blocks))  # the first is taken first
        self.watermark = int(config.watermark * (num_blocks + 1))
        self.cache = {}  # the blocks with a key, the oldest first
        self.waiting, self.running, self.work = deque(), [], {}
        self.hits = 0

    def add(self, member):
        self.waiting.append(member)
        self.sort()

    def sort(self):
        if self.priority:
            self.waiting = deque(sorted(self.waiting, key=lambda member: member.rank))

    def take(self, member, num_tokens):
        while len(member.blocks) * BLOCK < num_tokens:
            block = self.free.popleft()
            if block.key is not None:
                self.cache[block.key].remove(block)
                block.key = None
            block.users = 1
            member.blocks.append(block)
        self.name(member, num_tokens)

    def name(self, member, num_tokens):
        """A full block gets its key when it is filled."""
        keys = member.sequence.block_keys[: num_tokens // BLOCK]
        for index, key in enumerate(keys[member.named :], member.named):
            if self.config.enable_prefix_caching:
                member.blocks[index].key = key
                self.cache.setdefault(key, []).append(member.blocks[index])
        member.named = max(member.named, len(keys))

    def release(self, member):
        for block in reversed(member.blocks):
            block.users -= 1
            if block.users == 0:
                (self.free.appendleft if block.key is None else self.free.append)(block)
        member.blocks, member.named = [], 0

    def missing(self, member, num_tokens):
        return max(0, -(-num_tokens // BLOCK) - len(member.blocks))

    def longest(self):
        count, budget = len(self.running) + len(self.waiting), self.config.max_num_batched_tokens
        threshold = self.config.long_prefill_token_threshold if count > 1 else 0
        if threshold and self.config.long_prefill_token_threshold_adaptive:
            threshold = max(threshold, budget // count)
        return threshold or 10**9

    def schedule(self):
        """The work of the next step that has any."""
        while not self.step() and self.preempted:
            pass
        return {member.sequence: new for member, new in self.work.items()}

    def step(self):
        self.work, self.preempted = {}, False
        longest, left, index = self.longest(), self.config.max_num_batched_tokens, 0
        while index < len(self.running) and left:
            member = self.running[index]
            new = min(member.tokens - member.computed, longest, left)
            while member in self.running and self.missing(member, member.computed + new) > len(
                self.free
            ):
                victim = (
                    max(self.running, key=lambda member: member.rank)
                    if self.priority
                    else self.running[-1]
                )
                index -= self.running.index(victim) < index
                self.running.remove(victim)
                left += self.work.pop(victim, 0)
                self.release(victim)
                victim.computed, victim.preempted, self.preempted = 0, victim.preempted + 1, True
                self.waiting.appendleft(victim)
                self.sort()
            if member not in self.running:
                break
            self.take(member, member.computed + new)
            self.work[member] = new
            left -= new
            index += 1
        if not self.preempted:
            self.admit(longest, left)
        return self.work

    def admit(self, longest, left):
        most = min(self.config.max_num_seqs, self.config.max_num_active_seqs or 10**9)
        while self.waiting and left and len(self.running) < most:
            member, found = self.waiting[0], []
            for key in member.sequence.block_keys[: (member.tokens - 1) // BLOCK]:
                if not self.cache.get(key):
                    break
                found.append(self.cache[key][0])
            new = min(member.tokens - len(found) * BLOCK, longest)
            if not self.config.enable_chunked_prefill and new > left:
                break
            idle = sum(block.users == 0 for block in found)
            wanted = (
                -(-member.tokens // BLOCK)
                - len(found)
                + idle
                + (self.watermark if self.running else 0)
            )
            if wanted > len(self.free):
                break
            self.waiting.popleft()
            self.running.append(member)
            for block in found:
                if block.users == 0:
                    self.free.remove(block)
                block.users += 1
            member.blocks, member.computed, member.named = (
                list(found),
                len(found) * BLOCK,
                len(found),
            )
            self.hits += member.computed
            self.work[member] = min(new, left)
            self.take(member, member.computed + self.work[member])
            left -= self.work[member]

    def end(self):
        got = set()
        for member, new in self.work.items():
            if member.gone:
                continue
            member.computed += new
            if member.computed == member.tokens:
                member.output += 1
                got.add(member.sequence)
                if member.output == member.sequence.max_tokens:
                    self.leave(member)
        return got

    def leave(self, member):
        if member.gone:
            return
        (self.running if member in self.running else self.waiting).remove(member)
        self.release(member)
        member.gone = True


@examples(400)
@given(
    budget=st.integers(1, 60),
    seqs=st.integers(1, 6),
    blocks=st.integers(5, 14),
    whole=st.sampled_from([False, False, True]),
    caching=st.booleans(),
    priority=st.booleans(),
    more=st.fixed_dictionaries(
        {
            "long_prefill_token_threshold": st.sampled_from([0, 0, 1, 7, 20]),
            "long_prefill_token_threshold_adaptive": st.booleans(),
            "max_num_active_seqs": st.sampled_from([None, None, 1, 2]),
            "watermark": st.sampled_from([0.0, 0.0, 0.1, 0.5]),
        }
    ),
    # each: the step it arrives before, prompt and output tokens, its text, the step it is aborted
    # in, its priority
    arrivals=st.lists(
        st.tuples(
            st.integers(0, 25), st.integers(1, 60), st.integers(1, 20), st.integers(0, 3),
            st.sampled_from([None, None, None, 4, 12]), st.integers(0, 2),
        ),
        min_size=1,
        max_size=14,
    ),
)  # fmt: skip
def test_they_agree_on_every_step(budget, seqs, blocks, whole, caching, priority, more, arrivals):
    config = SchedulerConfig(
        max_num_batched_tokens=max(budget, 80) if whole else budget, max_num_seqs=seqs,
        kv_tokens=BLOCK * blocks,
        enable_chunked_prefill=not whole, enable_prefix_caching=caching, **more,
    )  # fmt: skip
    s = Scheduler(
        config,
        POLICIES["mixed" if whole else "chunked"],
        waiting=make_waiting_queue("priority" if priority else "fcfs"),
    )
    twin = Twin(config, blocks, priority=priority)
    plan = []
    for at, prompt, out, text, abort_at, rank in sorted(arrivals, key=lambda arrival: arrival[0]):
        # equal texts are alike to the end of the shorter, answers included: two may fill the same
        # block in one step
        keys = range(100 * text, 100 * text + (prompt + out) // BLOCK) if text else ()
        sequence = Sequence(prompt, out, keys, priority=rank)
        plan.append((at, abort_at, sequence, Member(sequence, len(plan))))
    now = 0
    while s.running or s.waiting or now <= 25:
        for at, _, sequence, member in plan:
            if at == now:
                added(s, sequence)
                twin.add(member)
        batch, work = schedule(s)
        assert work == twin.schedule()
        for at, abort_at, sequence, member in plan:
            if at <= now == abort_at:
                s.finish(sequence)
                twin.leave(member)
        assert end(s, batch) == twin.end()
        assert list(s.running) == [member.sequence for member in twin.running]
        assert list(s.waiting) == [member.sequence for member in twin.waiting]
        assert s.blocks.num_free == len(twin.free)
        for _, _, sequence, member in plan:
            if not member.gone:
                assert (sequence.num_output_tokens, sequence.num_blocks) == (
                    member.output,
                    len(member.blocks),
                )
                assert sequence.num_preemptions == member.preempted
                assert sequence.num_computed_tokens == member.computed
        now += 1
        assert now < 20_000
    assert s.num_cache_hits == twin.hits
