"""Running statistics equal those of everything seen at once, and folding changes nothing but the form."""

import numpy as np
import pytest
import torch

from tickrate.nn.export import ProgramWriter
from tickrate.nn.mlp import EnsembleMLP
from tickrate.nn.normaliser import RunningNormaliser
from tickrate.program.spec import Affine


def test_statistics_in_unequal_pieces_equal_those_of_the_whole():
    data = np.random.default_rng(0).normal(5.0, [0.1, 3.0, 100.0], (1000, 3))
    normaliser = RunningNormaliser(3)
    for piece in np.split(data, [1, 4, 700, 700]):
        normaliser.observe(torch.from_numpy(piece))
    assert normaliser.count == 1000
    np.testing.assert_allclose(normaliser.mean.numpy(), data.mean(0), rtol=1e-10)
    np.testing.assert_allclose(normaliser.variance.numpy(), data.var(0), rtol=1e-10)


def test_acting_does_not_move_the_statistics():
    normaliser = RunningNormaliser(2)
    normaliser.observe(torch.tensor([[0.0, 1.0], [2.0, 5.0]]))
    out = normaliser(torch.tensor([[1.0, 5.0]]))
    assert normaliser.count == 2
    torch.testing.assert_close(out, torch.tensor([[0.0, 1.0]]), rtol=1e-5, atol=1e-6)
    assert out.dtype == torch.float32


def test_a_constant_input_stays_finite():
    normaliser = RunningNormaliser(1)
    normaliser.observe(torch.full((10, 1), 7.0))
    assert normaliser(torch.tensor([[7.0]])).item() == pytest.approx(0.0, abs=1e-3)


@pytest.mark.parametrize("norm", ["none", "batch"])
@pytest.mark.parametrize("normalise", [False, True])
def test_folded_layers_equal_the_network(norm, normalise):
    torch.manual_seed(0)
    network = EnsembleMLP(
        2, 6, (16, 8), 3, norm=norm, generator=torch.Generator().manual_seed(0), momentum=0.3
    )
    normaliser = RunningNormaliser(6) if normalise else None
    if normaliser is not None:
        normaliser.observe(torch.randn(50, 6) * 4 + 2)
    with torch.no_grad():
        for norm in network.norms:
            norm.weight.uniform_(0.3, 2.0)
            norm.bias.uniform_(-1.0, 1.0)
        for _ in range(10):
            network(torch.randn(32, 6) * 2 - 1, batch_statistics=True)
        x = torch.randn(100, 6)
        expected = network(normaliser(x) if normaliser is not None else x)
    for member in range(2):
        writer = ProgramWriter()
        value = writer.read(["x"])
        network.write(writer, value if normaliser is None else normaliser.write(writer, value), member)
        program, tensors = writer.finish()
        assert [type(op).__name__ for op in program.ops] == ["Read", *["Affine", "Activation"] * 2, "Affine"]
        layers = [op.output for op in program.ops if isinstance(op, Affine)]
        y = x.numpy()
        for layer in layers:
            y = y @ tensors[f"{layer}.weight"] + tensors[f"{layer}.bias"]
            if layer != layers[-1]:
                y = np.maximum(y, 0.0)
        np.testing.assert_allclose(y, expected[member].numpy(), atol=1e-5)
