"""A strategy for what a replay may be given: streams mixed, both ends, breaks, lost and repeated rows."""

from hypothesis import strategies as st
from naive_replay import episode_keys

from tickrate.data.schema import Flag

ENDS = (Flag.TERMINATED, Flag.TRUNCATED, None)
EPISODE = st.tuples(st.integers(1, 9), st.sampled_from(ENDS))


@st.composite
def histories(draw):
    """Chunks of keys: interleaved streams, both ends, breaks, lost and repeated rows, evaluation episodes."""
    queues = []
    for stream in draw(
        st.lists(st.sampled_from([0, 1, 7, 4_000_000_000]), min_size=2, max_size=4, unique=True)
    ):
        keys = []
        for episode, (length, end) in enumerate(draw(st.lists(EPISODE, min_size=1, max_size=6))):
            evaluation = Flag.EVALUATION if draw(st.integers(0, 9)) == 0 else 0
            keys += [(*k[:3], k[3] | int(evaluation)) for k in episode_keys(stream, episode, length, end)]
        lost = draw(st.sets(st.integers(0, len(keys) - 1), max_size=2))
        queues.append([key for i, key in enumerate(keys) if i not in lost])
    random = draw(st.randoms(use_true_random=False))
    merged = []
    while any(queues):
        queue = random.choice([q for q in queues if q])
        run = random.choice([1, 1, 2, 5])
        merged += queue[:run]
        del queue[:run]
    chunks, at = [], 0
    while at < len(merged):
        size = random.choice([1, 1, 2, 7, 30])
        chunks.append(
            merged[max(0, at - random.choice([0, 0, 0, 3])) : at + size]
        )  # now and then some come again
        at += size
    return chunks
