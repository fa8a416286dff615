"""What is written down computes the same in numpy as the module does in torch, for every operation."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from tickrate.nn.encoder_config import EncoderConfig
from tickrate.nn.encoders import ObservationEncoder
from tickrate.nn.export import ProgramWriter
from tickrate.nn.normaliser import RunningNormaliser
from tickrate.nn.recurrent import RecurrentLayer
from tickrate.program.checking import check_program, check_tensors
from tickrate.program.running import Runner
from tickrate.program.spec import Affine, Conv2d, Scale


def runner_of(writer, leaves):
    program, tensors = writer.finish()
    shapes = check_program(program, leaves)
    check_tensors(shapes, tensors)
    return Runner(program, shapes, tensors)


def shaken(module, *inputs):
    """Give a module statistics and weights that are not trivial, then put it into evaluation."""
    torch.manual_seed(0)
    with torch.no_grad():
        for part in module.modules():
            if isinstance(part, nn.LayerNorm | nn.RMSNorm | nn.BatchNorm1d | nn.BatchNorm2d):
                for value in part.parameters():
                    value.uniform_(-1.5, 1.5)
        for _ in range(5):
            module(*(3.0 * x + 1.0 for x in inputs))
    return module.eval()


def compare(module, shape, writes=None):
    """Compare on a batch of random inputs ``(20, *shape)``; return the program's operations."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal((20, *shape)).astype(np.float32)
    shaken(module, torch.from_numpy(x))
    writer = ProgramWriter()
    value = writer.read_leaf("x") if len(shape) > 1 else writer.read(["x"])
    (writes or (lambda w, v: w.module(module, v)))(writer, value)
    runner = runner_of(writer, {"x": shape})
    out, _ = runner.run({"x": x}, {})
    with torch.no_grad():
        expected = module(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(out, expected.reshape(out.shape), atol=1e-5)
    assert np.abs(expected).max() > 0.1
    return runner.program.ops


ACTIVATIONS = [nn.ReLU(), nn.Tanh(), nn.ELU(), nn.SiLU()]


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=lambda a: type(a).__name__)
def test_vectors(activation):
    torch.manual_seed(3)
    module = nn.Sequential(
        nn.BatchNorm1d(7),
        nn.Linear(7, 16),
        activation,
        nn.Dropout(0.5),
        nn.LayerNorm(16),
        nn.Linear(16, 16, bias=False),
        nn.BatchNorm1d(16),
        activation,
        nn.RMSNorm(16),
        nn.Identity(),
        nn.Linear(16, 3),
    )
    assert not any(isinstance(op, Scale) for op in compare(module, (7,)))


def test_images_with_padding_strides_and_batch_norm_on_either_side():
    torch.manual_seed(4)
    module = nn.Sequential(
        nn.BatchNorm2d(3),
        nn.Conv2d(3, 8, (3, 5), (2, 1)),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 4, 3, 2, padding=(2, 1), bias=False),
        nn.SiLU(),
        nn.BatchNorm2d(4),
        nn.Conv2d(4, 4, 2, padding=1),
    )
    ops = compare(module, (3, 17, 16))
    # The last batch norm stays: the zeros around a padded picture are not normalised.
    assert [type(op).__name__ for op in ops].count("Scale") == 1


def test_histories():
    torch.manual_seed(5)
    module = nn.Sequential(nn.Conv1d(6, 8, 3, 2, padding=1), nn.ELU(), nn.Conv1d(8, 4, 2))
    compare(module, (6, 11))


class Residual(nn.Module):
    """A block as in recent actors: batch norm, ReLU and linear beside a straight connection."""

    def __init__(self):
        super().__init__()
        self.norm, self.first, self.second = nn.BatchNorm1d(6), nn.Linear(6, 24), nn.Linear(24, 6)

    def forward(self, x):
        return x + self.second(torch.relu(self.first(torch.relu(self.norm(x)))))

    def write(self, writer, x):
        y = writer.activation(writer.module(self.norm, x), "relu")
        y = writer.activation(writer.module(self.first, y), "relu")
        return writer.add(x, writer.module(self.second, y))


def test_a_module_of_ones_own_with_a_residual_connection():
    torch.manual_seed(6)
    ops = compare(nn.Sequential(nn.Linear(5, 6), Residual(), Residual(), nn.Linear(6, 2)), (5,))
    assert [type(op).__name__ for op in ops].count("Scale") == 2


class Atoms(nn.Module):
    """The head of a distributional critic: five atoms from -2 to 2 for each of three choices."""

    def __init__(self):
        super().__init__()
        self.logits = nn.Linear(6, 15)

    def forward(self, x):
        return self.logits(x).view(-1, 3, 5).softmax(-1) @ torch.linspace(-2, 2, 5)

    def write(self, writer, x):
        return writer.expected_value(writer.module(self.logits, x), 5, -2.0, 2.0)


def test_expected_values_of_distributions():
    torch.manual_seed(7)
    compare(Atoms(), (6,))


def test_a_normaliser_before_a_shared_layer_is_folded_into_all_its_readers():
    normaliser = RunningNormaliser(4)
    normaliser.observe(torch.randn(100, 4, generator=torch.Generator().manual_seed(0)) * 5 + 3)
    left, right = nn.Linear(4, 3), nn.Linear(4, 3)
    writer = ProgramWriter()
    x = writer.module(normaliser, writer.read(["x"]))
    writer.concat([writer.module(left, x), writer.module(right, x)])
    runner = runner_of(writer, {"x": (4,)})
    data = torch.randn(9, 4, generator=torch.Generator().manual_seed(1)) * 5
    with torch.no_grad():
        y = normaliser(data)
        expected = torch.cat([left(y), right(y)], 1)
    np.testing.assert_allclose(runner.run({"x": data.numpy()}, {})[0], expected.numpy(), atol=1e-5)
    assert [type(op).__name__ for op in runner.program.ops] == ["Read", "Affine", "Affine", "Concat"]


def test_what_cannot_be_written_down_is_named():
    writer = ProgramWriter()
    x = writer.read(["x"])
    for module in (
        nn.GELU(),
        nn.ELU(alpha=0.5),
        nn.Conv2d(2, 2, 3, dilation=2),
        nn.Conv2d(2, 2, 3, groups=2),
        nn.Conv2d(2, 2, 3, padding="same"),
        nn.BatchNorm1d(3, track_running_stats=False),
        nn.LayerNorm((2, 3)),
    ):
        with pytest.raises(TypeError, match=type(module).__name__):
            writer.module(module, x)


SPACES = {
    "camera": spaces.Box(0, 255, (20, 22, 3), np.uint8),
    "stack": spaces.Box(0, 255, (4, 20, 20), np.uint8),
    "speed": spaces.Box(-9, 9, (2,)),
    "scan": spaces.Box(0, 9, (8, 5)),
    "actions": spaces.Box(-1, 1, (3, 2)),
    "keys": spaces.MultiBinary(3),
}
SMALL = EncoderConfig(
    image_channels=(4, 8),
    image_kernels=(5, 3),
    image_strides=(3, 1),
    image_features=10,
    history_leaves=("scan",),
    history_channels=(6, 4),
    history_kernels=(3, 2),
    history_strides=(1, 2),
    history_features=5,
)


def sample(batch, seed=0):
    rng = np.random.default_rng(seed)
    found = {}
    for path, space in SPACES.items():
        if space.dtype == np.float32:
            found[path] = rng.standard_normal((batch, *space.shape)).astype(np.float32)
        else:
            found[path] = rng.integers(
                0, 256 if space.dtype == np.uint8 else 2, (batch, *space.shape), space.dtype
            )
    return found


@pytest.mark.parametrize("along", ["time", "features"])
@pytest.mark.parametrize("normalise", [False, True])
def test_a_mixed_observation_through_the_encoder(along, normalise):
    config = EncoderConfig(**{**vars(SMALL), "history_along": along})
    normaliser = RunningNormaliser(11) if normalise else None
    if normaliser is not None:
        normaliser.observe(torch.randn(60, 11, generator=torch.Generator().manual_seed(2)) * 3 - 1)
    encoder = ObservationEncoder(
        config, SPACES, generator=torch.Generator().manual_seed(0), normaliser=normaliser
    )
    assert encoder.vector_paths == ("speed", "actions", "keys")
    assert encoder.features == 2 + 6 + 3 + 10 + 10 + 5
    writer = ProgramWriter()
    writer.module(nn.Linear(encoder.features, 4), encoder.write(writer))
    runner = runner_of(writer, {path: space.shape for path, space in SPACES.items()})
    layer = next(op for op in runner.program.ops[::-1] if isinstance(op, Affine))
    for batch in (1, 6):
        observation = sample(batch)
        out, _ = runner.run(observation, {})
        with torch.no_grad():
            features = encoder({path: torch.from_numpy(rows) for path, rows in observation.items()}).numpy()
        tensors = runner._tensors
        expected = features @ tensors[f"{layer.output}.weight"] + tensors[f"{layer.output}.bias"]
        np.testing.assert_allclose(out, expected, atol=1e-5)


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_fifty_recurrent_steps_with_a_reset(kind):
    generator = torch.Generator().manual_seed(0)
    layer = RecurrentLayer(kind, 6, 5, generator=generator)
    before, head = nn.Linear(3, 6), nn.Linear(5, 2)
    x = torch.randn(4, 50, 3, generator=generator) * 2
    reset = torch.zeros(4, 50, dtype=torch.bool)
    reset[:, 0] = reset[:, 23] = True
    with torch.no_grad():
        outputs, _ = layer(torch.relu(before(x)), reset, layer.initial_state(4))
        expected = head(outputs).numpy()
    writer = ProgramWriter()
    y = writer.activation(writer.module(before, writer.read(["x"])), "relu")
    writer.module(head, writer.module(layer, y))
    runner = runner_of(writer, {"x": (3,)})
    state = None
    for step in range(50):
        if reset[0, step]:
            state = runner.initial_state(4)
        out, state = runner.run({"x": x[:, step].numpy()}, state)
        np.testing.assert_allclose(out, expected[:, step], atol=1e-5)
    assert {name: rows.shape for name, rows in state.items()} == (
        {"memory": (4, 5)} if kind == "gru" else {"memory": (4, 5), "memory.cell": (4, 5)}
    )


def test_names_are_counted_by_kind():
    writer = ProgramWriter()
    writer.module(nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Conv2d(2, 2, 3)), writer.read_leaf("x"))
    program, _ = writer.finish()
    assert [op.output for op in program.ops if isinstance(op, Conv2d)] == ["conv.0", "conv.1"]


def test_categories_are_written_as_one_hot_exactly():
    low, high = [-2, 0, 16_000_000], [1, 0, 16_000_002]
    writer = ProgramWriter()
    writer.one_hot(writer.read(["x"]), low, high)
    runner = runner_of(writer, {"x": (3,)})
    rows = [[-2, 0, 16_000_000], [0, 0, 16_000_002], [1, 1, 15_999_999], [-90, -1, 0]]
    out, _ = runner.run({"x": np.array(rows, np.int64)}, {})
    expected = [
        [1, 0, 0, 0, 1, 1, 0, 0],
        [0, 0, 1, 0, 1, 0, 0, 1],
        [0, 0, 0, 1, 0, 0, 0, 0],  # neither 1 nor 15 999 999 is a category of its part
        [0, 0, 0, 0, 0, 0, 0, 0],
    ]
    np.testing.assert_array_equal(out, np.array(expected, np.float32))
