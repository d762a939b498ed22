"""The scheduler against a twin that counts everything one by one, sequence by sequence and block by block."""

from collections import deque
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples
from support.stepping import added, end, make, schedule

from locust_llm.simulator.scheduling.sequence import Sequence

BLOCK = 16


@dataclass(eq=False)
class Block:
    key: int | None = None
    users: int = 0


@dataclass(eq=False)
class Member:
    sequence: Sequence
    computed: int = 0
    output: int = 0
    blocks: list[Block] = field(default_factory=list)
    preempted: int = 0
    named: int = 0
    gone: bool = False

    @property
    def tokens(self):
        return self.sequence.num_prompt_tokens + self.output


class Twin:
    """vLLM V1's loops as they are written there: no sums, no sets of those that decode, every block an object."""

    def __init__(self, budget, seqs, num_blocks, threshold, caching):
        self.budget, self.seqs, self.threshold, self.caching = budget, seqs, threshold, caching
        self.free = deque(Block() for _ in range(num_blocks))  # the first is taken first
        self.cache = {}
        self.waiting, self.running, self.work = deque(), [], {}
        self.hits = 0

    def take(self, member, num_tokens):
        while len(member.blocks) * BLOCK < num_tokens:
            block = self.free.popleft()
            if block.key is not None:
                del self.cache[block.key]
                block.key = None
            block.users = 1
            member.blocks.append(block)
        self.name(member, num_tokens)

    def name(self, member, num_tokens):
        """A full block gets its key when it is filled, or never, if there is one with that key."""
        keys = member.sequence.block_keys[: num_tokens // BLOCK]
        for index, key in enumerate(keys[member.named :], member.named):
            if self.caching and key not in self.cache:
                member.blocks[index].key = key
                self.cache[key] = member.blocks[index]
        member.named = max(member.named, len(keys))

    def release(self, member):
        for block in reversed(member.blocks):
            block.users -= 1
            if block.users == 0:
                (self.free.appendleft if block.key is None else self.free.append)(block)
        member.blocks, member.named = [], 0

    def missing(self, member, num_tokens):
        return max(0, -(-num_tokens // BLOCK) - len(member.blocks))

    def schedule(self):
        self.work, preempted, left = {}, False, self.budget
        longest = self.threshold if self.threshold and len(self.running) + len(self.waiting) > 1 else self.budget
        for member in list(self.running):
            if left == 0 or member not in self.running:
                break
            new = min(member.tokens - member.computed, longest, left)
            while member in self.running and self.missing(member, member.computed + new) > len(self.free):
                victim = self.running.pop()
                self.release(victim)
                victim.computed, victim.preempted, preempted = 0, victim.preempted + 1, True
                self.waiting.appendleft(victim)
            if member not in self.running:
                break
            self.take(member, member.computed + new)
            self.work[member] = new
            left -= new
        while self.waiting and left and len(self.running) < self.seqs and not preempted:
            member, found = self.waiting[0], []
            for key in member.sequence.block_keys[: (member.tokens - 1) // BLOCK]:
                if not self.caching or key not in self.cache:
                    break
                found.append(self.cache[key])
            idle = sum(block.users == 0 for block in found)
            if -(-member.tokens // BLOCK) - len(found) + idle > len(self.free):
                break
            self.waiting.popleft()
            self.running.append(member)
            for block in found:
                if block.users == 0:
                    self.free.remove(block)
                block.users += 1
            member.blocks, member.computed, member.named = list(found), len(found) * BLOCK, len(found)
            self.hits += member.computed
            self.work[member] = min(member.tokens - member.computed, longest, left)
            self.take(member, member.computed + self.work[member])
            left -= self.work[member]
        return {member.sequence: new for member, new in self.work.items()}

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


@examples(250)
@given(
    budget=st.integers(1, 60),
    seqs=st.integers(1, 6),
    blocks=st.integers(5, 14),
    threshold=st.sampled_from([0, 0, 1, 7, 20]),
    caching=st.booleans(),
    # each: the step it arrives before, prompt and output tokens, whose text it begins with, the step it is aborted in
    arrivals=st.lists(
        st.tuples(
            st.integers(0, 25), st.integers(1, 60), st.integers(1, 20), st.integers(0, 3),
            st.sampled_from([None, None, None, 4, 12]),
        ),
        min_size=1,
        max_size=14,
    ),
)  # fmt: skip
def test_they_agree_on_every_step(budget, seqs, blocks, threshold, caching, arrivals):
    s = make(
        budget=budget, seqs=seqs, kv_tokens=BLOCK * blocks, threshold=threshold, enable_prefix_caching=caching,
    )  # fmt: skip
    twin = Twin(budget, seqs, blocks, threshold, caching)
    plan = []
    for at, prompt, out, text, abort_at in sorted(arrivals, key=lambda arrival: arrival[0]):
        # equal texts begin alike; answers differ, for else two copies of a block come to be, and which has the key depends
        # on the order within a round
        shared = range(100 * text, 100 * text + prompt // BLOCK)
        own = range(10_000 + 100 * len(plan), 10_000 + 100 * len(plan) + (prompt + out) // BLOCK - prompt // BLOCK)
        sequence = Sequence(prompt, out, (*shared, *own) if text else ())
        plan.append((at, abort_at, sequence, Member(sequence)))
    now = 0
    while s.running or s.waiting or now <= 25:
        for at, _, sequence, member in plan:
            if at == now:
                added(s, sequence)
                twin.waiting.append(member)
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
                assert (sequence.num_output_tokens, sequence.num_blocks) == (member.output, len(member.blocks))
                assert sequence.num_preemptions == member.preempted
                assert sequence.num_computed_tokens == member.computed
        now += 1
        assert now < 20_000
    assert s.num_cache_hits == twin.hits
