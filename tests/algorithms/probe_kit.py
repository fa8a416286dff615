"""Random play on a probe into a replay, and how well a policy does there, for the tests of algorithms."""

from tickrate import trees
from tickrate.data.replay import Replay
from tickrate.data.schema import Flag, RecordSchema


def spaces_of(env):
    return trees.leaf_spaces(env.observation_space)


def leaves_of(env, observation):
    return trees.leaves(env.observation_space, observation)


def random_play(env, steps, **replay_options):
    """Return a replay of whole episodes of random actions, at least ``steps`` transitions."""
    schema = RecordSchema.from_spaces(spaces_of(env), env.action_space)
    replay = Replay(schema, 4 * steps, **replay_options)
    env.action_space.seed(0)
    episode = 0
    while len(replay) < steps:
        observation, _ = env.reset(seed=episode)
        ended, step = False, 0
        while not ended:
            action = env.action_space.sample()
            following, reward, terminated, truncated, _ = env.step(action)
            ended = terminated or truncated
            row = schema.empty(2 if ended else 1)
            at = {"stream": 0, "episode": episode}
            flags = Flag.TERMINATED * terminated | Flag.TRUNCATED * truncated
            here = leaves_of(env, observation)
            schema.pack(row[0], here, step=step, flags=flags, action=action, reward=reward, **at)
            if ended:
                schema.pack(row[1], leaves_of(env, following), step=step + 1, flags=Flag.FINAL, **at)
            replay.add(row)
            observation, step = following, step + 1
        episode += 1
    return replay


def play(env, policy, episodes=10):
    """Return the mean reward a step of a policy without exploration."""
    total, steps = 0.0, 0
    for episode in range(episodes):
        observation, _ = env.reset(seed=1000 + episode)
        state, ended = policy.initial_state(1), False
        while not ended:
            batch = {path: value[None] for path, value in leaves_of(env, observation).items()}
            action, state, _ = policy.act(batch, state, deterministic=True)
            observation, reward, terminated, truncated, _ = env.step(action[0])
            total, steps, ended = total + reward, steps + 1, terminated or truncated
    return total / steps
