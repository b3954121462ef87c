"""`sample` in torch's and JAX's transformations: the tokens of plain calls."""

import numpy as np
import pytest

import dmlops
from dmlops import InvalidDescriptorError
from tests.data import random

X = random("frameworks").standard_normal((6, 300)).astype("float32") * 2
SEEDS = np.arange(6)
OPTIONS = {"k": 20, "top_p": 0.9, "min_p": 0.01}


def tokens(x, seeds, **options):
    """Return the tokens of a plain call."""
    return dmlops.sample(np.asarray(x), np.asarray(seeds), **options).tolist()


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch.*")  # torch about itself
@pytest.mark.filterwarnings("ignore::UserWarning:torch.*")
@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
class TestTorch:
    @pytest.fixture(autouse=True)
    def tensors(self):
        self.torch = pytest.importorskip("torch")
        self.x, self.seeds = self.torch.from_numpy(X), self.torch.from_numpy(SEEDS)

    def test_compiled(self):
        def draw(x, seeds, temperature):
            return dmlops.sample(x, seeds, temperature=temperature, **OPTIONS)

        temperature = self.torch.linspace(0, 2, 6)
        expected = tokens(X, SEEDS, temperature=temperature.numpy(), **OPTIONS)
        compiled = self.torch.compile(draw, fullgraph=True, backend="aot_eager")
        assert compiled(self.x, self.seeds, temperature).tolist() == expected
        out = self.torch.empty(6, dtype=self.torch.int32)
        written = self.torch.compile(
            lambda x, seeds, out: dmlops.sample(x, seeds, out=out), fullgraph=True, backend="aot_eager"
        )
        assert written(self.x, self.seeds, out) is out
        assert out.tolist() == tokens(X, SEEDS)

    def test_dynamic_sizes_and_steps(self):
        compiled = self.torch.compile(
            lambda x, seeds, step, heat: dmlops.sample(x, seeds, steps=step, temperature=heat),
            fullgraph=True,
            backend="aot_eager",
            dynamic=True,
        )
        heat = self.torch.tensor([2.0])  # one for all rows
        for n, step in ((6, 0), (6, 3), (4, 7), (5, 2**40)):
            got = compiled(self.x[:n], self.seeds[:n], step, heat)
            assert got.tolist() == tokens(X[:n], SEEDS[:n], steps=step, temperature=2.0)

    def test_exported(self):
        class Model(self.torch.nn.Module):
            def forward(self, x, seeds):
                return dmlops.sample(x, seeds, **OPTIONS)

        program = self.torch.export.export(Model(), (self.x, self.seeds))
        assert program.module()(self.x, self.seeds).tolist() == tokens(X, SEEDS, **OPTIONS)

    def test_vmap(self):
        vmap, rows = self.torch.vmap, self.x.reshape(2, 3, 300)

        def draw(x, seeds):
            return dmlops.sample(x, seeds, **OPTIONS)

        assert vmap(draw)(self.x, self.seeds).tolist() == tokens(X, SEEDS, **OPTIONS)
        of_one = vmap(draw, in_dims=(None, 0))(self.x, self.seeds)
        assert of_one.tolist() == [tokens(X, seed, **OPTIONS) for seed in SEEDS]
        of_columns = vmap(draw, in_dims=(1, 0))(rows, self.seeds[:3])
        assert of_columns.T.tolist() == tokens(rows, SEEDS[None, :3], **OPTIONS)
        of_rows = vmap(draw)(rows, self.seeds[:2])
        assert of_rows.tolist() == tokens(rows, SEEDS[:2, None], **OPTIONS)
        with pytest.raises(InvalidDescriptorError, match=r"sample\.top_p: got 2\.0"):
            vmap(lambda x: dmlops.sample(x, 1, top_p=2.0))(self.x)

    def test_gradients_end_here(self):
        x = self.x.clone().requires_grad_()
        drawn = dmlops.sample(x, self.seeds)
        assert not drawn.requires_grad
        assert drawn.tolist() == tokens(X, SEEDS)

    def test_meta(self):
        drawn = dmlops.sample(self.x.to("meta"), self.seeds.to("meta"), index_dtype="int32")
        assert (drawn.shape, drawn.dtype) == ((6,), self.torch.int32)


class TestJax:
    @pytest.fixture(autouse=True)
    def arrays(self):
        self.jax = pytest.importorskip("jax")
        self.sample = pytest.importorskip("dmlops.integrations.jax").sample
        self.x, self.seeds = self.jax.numpy.asarray(X), self.jax.numpy.asarray(SEEDS)

    def test_jit(self):
        def draw(x, seeds, temperature):
            return self.sample(x, seeds, temperature=temperature, **OPTIONS)

        expected = tokens(X, SEEDS, temperature=np.float32(0.7), **OPTIONS)
        assert draw(self.x, self.seeds, 0.7) is not None
        temperature = self.jax.numpy.float32(0.7)
        assert draw(self.x, self.seeds, temperature).tolist() == expected
        assert self.jax.jit(draw)(self.x, self.seeds, temperature).tolist() == expected
        wide = {"seeds": 12345678901234, "steps": 2**63}
        assert self.sample(self.x, **wide).tolist() == tokens(X, **wide)

    def test_vmap(self):
        vmap, rows = self.jax.vmap, self.x.reshape(2, 3, 300)

        def draw(x, seeds):
            return self.sample(x, seeds, **OPTIONS)

        assert vmap(draw)(self.x, self.seeds).tolist() == tokens(X, SEEDS, **OPTIONS)
        of_one = vmap(draw, in_axes=(None, 0))(self.x, self.seeds)
        assert of_one.tolist() == [tokens(X, seed, **OPTIONS) for seed in SEEDS]
        of_columns = vmap(draw, in_axes=(1, 0))(rows, self.seeds[:3])
        assert of_columns.T.tolist() == tokens(rows, SEEDS[None, :3], **OPTIONS)
        of_rows = self.jax.jit(vmap(draw))(rows, self.seeds[:2])
        assert of_rows.tolist() == tokens(rows, SEEDS[:2, None], **OPTIONS)

    def test_gradients_end_here(self):
        def loss(x):
            return self.sample(x, self.seeds).astype(float).sum() + x.sum()

        assert (self.jax.grad(loss)(self.x) == 1).all()


class TestNjit:
    """In functions that Numba compiles."""

    @pytest.fixture(autouse=True)
    def numba(self):
        self.njit = pytest.importorskip("numba").njit

    def test_arrays_and_numbers(self):
        @self.njit
        def draw(x, seeds, temperature, step):
            return dmlops.sample(x, seeds, steps=step, temperature=temperature, k=20, top_p=0.9)

        temperature = np.linspace(0, 2, 6)
        for step in range(3):
            expected = tokens(X, SEEDS, steps=step, temperature=temperature, k=20, top_p=0.9)
            assert draw(X, SEEDS, temperature, step).tolist() == expected

    def test_numbers_of_any_type_and_errors_after_a_hit(self):
        @self.njit
        def draw(x, temperature, top_p, out):
            return dmlops.sample(x, 7, temperature=temperature, top_p=top_p, out=out)

        out = np.zeros(6, "int32")
        for temperature, top_p in ((1, 1), (0.5, 0.7), (2, 0.0)):
            assert draw(X, temperature, top_p, out).tolist() == tokens(
                X, 7, temperature=temperature, top_p=top_p
            )
            for wrong, text in (((1.0, 1.5), "top_p: got 1.5"), ((np.nan, 0.5), "temperature: got nan")):
                with pytest.raises(InvalidDescriptorError, match=text):
                    draw(X, *wrong, out)
