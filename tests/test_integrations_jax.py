"""`dmlops.integrations.jax`: the functions in JAX's transformations, their derivatives and their errors."""

from functools import partial

import numpy as np
import pytest

jax = pytest.importorskip("jax")

from jax import numpy as jnp  # noqa: E402

import dmlops  # noqa: E402
from dmlops import FeatureLevel, InvalidDescriptorError, UnsupportedFeatureError  # noqa: E402
from dmlops.integrations.jax import diagonal_matrix, gather_nd, nonzero_coordinates, top_k  # noqa: E402
from tests import reference  # noqa: E402
from tests.data import DTYPES, INDEX_DTYPES, bits, sample  # noqa: E402
from tests.scripts import run_page, run_script  # noqa: E402

DEVICES = ("cpu", pytest.param("cuda", marks=pytest.mark.gpu)) if jax.default_backend() == "gpu" else ("cpu",)


@pytest.fixture(params=DEVICES, autouse=True)
def _device(request):
    # Compilation takes nearly all of the time of these tests.
    jax.config.update("jax_disable_most_optimizations", request.param == "cpu")
    with jax.default_device(jax.devices(request.param)[0]):
        yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture
def wide():
    """JAX with 64-bit types."""
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)


def assert_same(results, expected):
    for result, answer in zip(results, expected, strict=True):
        assert isinstance(result, jax.Array)
        assert result.dtype == answer.dtype
        np.testing.assert_array_equal(bits(np.asarray(result)), bits(answer))


def normal(*shape):
    return jnp.asarray(np.random.default_rng(len(shape)).normal(size=shape), "float32")


class TestAnswers:
    """Against plain NumPy, under jit."""

    @pytest.mark.usefixtures("wide")
    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    def test_every_type(self, dtype):
        x = sample(dtype, (5, 7), f"jax {dtype}")
        indices = np.array([[1], [-1], [9], [-8]])

        @jax.jit
        def every(x, indices):
            return (
                *top_k(x, 3),
                *nonzero_coordinates(x, size=40),
                *(gather_nd(x, indices, mode=mode) for mode in ("clip", "fill")),
                diagonal_matrix(x, value=1, begin=-1, end=2),
            )

        expected = [
            *reference.top_k(x, 3),
            *reference.nonzero_coordinates(x, size=40),
            *(reference.gather_nd(x, indices, mode=mode) for mode in ("clip", "fill")),
            reference.diagonal_matrix(x, begin=-1, end=2),
        ]
        assert_same(every(x, indices), expected)

    @pytest.mark.usefixtures("wide")
    @pytest.mark.parametrize("dtype", ["complex64", "complex128", "float8_e4m3fn"])
    def test_types_of_which_kernels_know_the_bits(self, dtype):
        x, value = jnp.asarray([[0, -1, 2], [3, 0, 0]], dtype), 2 - 1j if "complex" in dtype else 2

        @jax.jit
        def every(x):
            found, count = nonzero_coordinates(x, size=3)
            return gather_nd(x, found, mode="clip"), count, diagonal_matrix(x, value=value)

        gathered, count, filled = every(x)
        assert (gathered.dtype, gathered.tolist(), count.tolist()) == (x.dtype, [-1, 2, 3], 3)
        assert filled.astype(complex).tolist() == [[value, -1, 2], [3, value, 0]]
        made = diagonal_matrix(shape=(1, 2), dtype=x.dtype, value=value)
        assert (made.dtype, made.astype(complex).tolist()) == (x.dtype, [[value, 0]])
        if "complex" in dtype:
            gradient = jax.grad(lambda x: gather_nd(x, [[1]], mode="clip").sum(), holomorphic=True)(x)
            assert gradient.tolist() == [[0, 0, 0], [1, 1, 1]]
        with pytest.raises(TypeError, match=rf"^top_k\.x: got {dtype}, but "):
            top_k(x, 1)

    @pytest.mark.usefixtures("wide")
    @pytest.mark.parametrize("index_dtype", INDEX_DTYPES, ids=str)
    def test_every_index_type(self, index_dtype):
        x, lengths = sample("float32", (4, 6), "jax indices"), np.array([6, 0, 2, 99], index_dtype)

        @jax.jit
        def every(x, lengths):
            return (
                *top_k(x, 4, lengths=lengths, index_dtype=index_dtype),
                *nonzero_coordinates(x, size=30, index_dtype=index_dtype),
                gather_nd(x, lengths[:, None], mode="clip"),
            )

        values, selected = reference.top_k(x, 4, lengths=lengths)
        found = reference.nonzero_coordinates(x, size=30)
        expected = [values, *(array.astype(index_dtype) for array in (selected, *found))]
        assert_same(every(x, lengths), [*expected, reference.gather_nd(x, lengths[:, None], mode="clip")])

    @pytest.mark.parametrize(
        ("shape", "k", "options"),
        [
            ((6, 50), 7, {"largest": False}),
            ((6, 50), 50, {"sorted": False}),
            ((5, 4, 3), 2, {"axis": 1}),
            ((5, 4, 3), 5, {"axis": -3, "largest": False}),
            ((), 1, {}),
            ((4, 3), 0, {}),
            ((0, 3), 2, {}),
            ((3, 70_000), 300, {}),
        ],
    )
    def test_top_k(self, shape, k, options):
        x = sample("float32", shape, "jax top_k")
        values, indices = reference.top_k(x, k, **options)
        assert_same(top_k(x, k, **options), [values, indices.astype("int32")])

    def test_nonzero_coordinates(self):
        for shape, size in (((5, 6), 3), ((5, 6), 99), ((), 2), ((0, 3), 4), ((5, 6), 0), ((2, 3, 4), 20)):
            x = sample("float32", shape, "jax nonzero")
            coordinates, count = reference.nonzero_coordinates(x, size=size, fill_value=-1)
            expected = [coordinates.astype("int32"), count.astype("int32")]
            assert_same(nonzero_coordinates(x, size=size, fill_value=-1), expected)
        coordinates, count = nonzero_coordinates(x)
        assert_same([coordinates, count], [np.argwhere(x != 0).astype("int32"), np.int32(len(coordinates))])

    def test_gather_nd(self):
        x, indices = sample("float32", (2, 5, 3, 2), "jax gather"), np.array([[[4, -1]], [[-5, 7]]], "int32")
        for mode in ("clip", "fill"):
            expected = reference.gather_nd(x, indices, batch_dims=1, mode=mode)
            assert_same([gather_nd(x, indices, batch_dims=1, mode=mode)], [expected])
        # Outside of transformations the default mode raises.
        with pytest.raises(IndexError, match="at position"):
            gather_nd(x, indices, batch_dims=1)
        for mode in ("wrap", ["clip"]):
            with pytest.raises(InvalidDescriptorError, match=r"gather_nd\.mode: got .* no such mode"):
                gather_nd(x, indices, mode=mode)

    def test_diagonal_matrix(self):
        assert_same([diagonal_matrix(shape=(3, 4))], [np.eye(3, 4, dtype="float32")])
        for dtype in (bool, int, float, complex):
            assert diagonal_matrix(shape=(1, 1), dtype=dtype).dtype == jnp.zeros(0, dtype).dtype
        for begin, end in ((2, None), (1, np.inf), (-np.inf, np.inf), (np.inf, -1), (-(10**5000), None)):
            expected = reference.diagonal_matrix(np.zeros((3, 4), "float32"), begin=begin, end=end)
            assert_same([diagonal_matrix(shape=(3, 4), begin=begin, end=end)], [expected])
        made = jax.jit(lambda: diagonal_matrix(shape=(2, 3, 4), dtype="bfloat16", value=-np.inf, end=2**70))()
        assert_same([made.astype("float32")], [np.triu(np.full((2, 3, 4), -np.inf, "float32"))])
        nan = np.uint32(0xFFC12345).view("float32")
        assert bits(np.asarray(diagonal_matrix(shape=(1, 1), value=nan))) == 0xFFC12345

    def test_shapes_without_elements(self):
        x = jax.ShapeDtypeStruct((3, 1 << 40), "bfloat16")
        values, indices = jax.eval_shape(lambda x: top_k(x, 2, index_dtype="int32", axis=0), x)
        assert (values.shape, values.dtype) == ((2, 1 << 40), jnp.bfloat16)
        assert (indices.shape, indices.dtype) == ((2, 1 << 40), jnp.int32)


class TestVmap:
    """A batch gives what its examples give one by one."""

    def check(self, function, *inputs, in_axes=0, out_axes=0):
        axes = in_axes if isinstance(in_axes, tuple) else (in_axes,) * len(inputs)
        pairs = list(zip(map(np.asarray, inputs), axes, strict=True))
        (size,) = {x.shape[axis] for x, axis in pairs if axis is not None}
        examples = [
            function(*(x if axis is None else x.take(i, axis) for x, axis in pairs)) for i in range(size)
        ]
        batch = jax.jit(jax.vmap(function, in_axes, out_axes))(*inputs)
        for result, *answers in zip(*map(jax.tree.leaves, (batch, *examples)), strict=True):
            assert_same([result], [np.stack(answers, out_axes)])

    @pytest.mark.parametrize("in_axes", [0, 1, 2])
    def test_top_k(self, in_axes):
        for axis in (0, -1):
            self.check(partial(top_k, k=2, axis=axis), normal(4, 3, 5), in_axes=in_axes, out_axes=1)
        self.check(partial(top_k, k=1), normal(4), out_axes=in_axes % 2)

    def test_top_k_of_lengths(self):
        x, lengths = normal(4, 3, 5), jnp.arange(12).reshape(4, 3) - 3
        self.check(lambda x, n: top_k(x, 3, lengths=n), x, lengths)
        self.check(lambda x, n: top_k(x, 3, lengths=n), x, lengths[0], in_axes=(0, None))
        self.check(lambda x, n: top_k(x, 3, lengths=n), x[0], lengths, in_axes=(None, 0))
        self.check(jax.vmap(lambda x, n: top_k(x, 3, lengths=n)), x, lengths)

    def test_nonzero_coordinates(self):
        x = jnp.where(normal(3, 4, 5, 2) > 0.5, 1e-45, -0.0)  # subnormals, which are zero to XLA on the CPU
        for size in (0, 7, 50):
            self.check(partial(nonzero_coordinates, size=size, fill_value=-2), x)
        self.check(lambda x: nonzero_coordinates(x, size=3, index_dtype="uint32"), x[0], in_axes=1)
        self.check(lambda x: nonzero_coordinates(x, size=2), normal(3).at[1].set(0))
        self.check(lambda x: nonzero_coordinates(x, size=2), normal(3, 0, 4))
        self.check(jax.vmap(lambda x: nonzero_coordinates(x, size=4)), x)

    def test_gather_nd(self):
        x, indices = normal(3, 4, 5), jnp.asarray([[[1, 2], [0, -1]], [[-9, 9], [3, 0]], [[2, 2], [1, 1]]])
        for mode in ("clip", "fill"):
            self.check(partial(gather_nd, mode=mode), x, indices[..., :1])
            self.check(partial(gather_nd, mode=mode), x, indices[0], in_axes=(2, None))
            self.check(partial(gather_nd, mode=mode), x, indices, in_axes=(None, 0))
        self.check(lambda x, i: gather_nd(x, i, batch_dims=1, mode="clip"), x, indices, in_axes=(None, 2))

    def test_diagonal_matrix(self):
        self.check(lambda x: diagonal_matrix(x, value=3, begin=1, end=9), normal(3, 4, 5), in_axes=2)

    def test_errors_are_those_of_one_example(self):
        with pytest.raises(InvalidDescriptorError, match=r"^top_k\.k: got 6, but axis 0 of x has 5 elements"):
            jax.vmap(lambda x: top_k(x, 6))(normal(3, 5))


# The second and the last tuple are out of range.
OUTSIDE = np.array([[1, 0], [7, 3], [1, 0], [0, -9]])
BATCHES = np.array([[[1, 0], [2, 3]], [[2, 1], [0, 4]], [[0, 9], [-1, 2]]])
BAND = np.tri(4, 5, 1, dtype=bool) & ~np.tri(4, 5, -2, dtype=bool)

# Each call on an array of shape (3, 4, 5), with the same computation in JAX's own operations.
OPERATIONS = {
    "top_k": (
        lambda x: top_k(x, 2, axis=1).values,
        lambda x: jax.lax.top_k(x.swapaxes(1, 2), 2)[0].swapaxes(1, 2),
    ),
    "gather_nd_fill": (
        lambda x: gather_nd(x, OUTSIDE, mode="fill"),
        lambda x: jnp.stack([x[1, 0], 0 * x[0, 0], x[1, 0], 0 * x[0, 0]]),
    ),
    "gather_nd_clip_batch": (
        lambda x: gather_nd(x, BATCHES, batch_dims=1, mode="clip"),
        lambda x: x[np.arange(3)[:, None], BATCHES[..., 0] % 4, np.minimum(BATCHES[..., 1], 4)],
    ),
    "diagonal_matrix": (
        lambda x: diagonal_matrix(x, value=3.5, begin=-1, end=2),
        lambda x: jnp.where(BAND, 3.5, x),
    ),
    "diagonal_matrix_inverted": (
        lambda x: diagonal_matrix(x, value=-1, begin=2, end=-1),
        lambda x: jnp.where(BAND, x, -1),
    ),
}


def cubes(f):
    return lambda x: (f(x) ** 3).sum()


# Derivatives of a function `f` at `x`, some along a tangent `t`.
TRANSFORMATIONS = {
    "value": lambda f, x, _: f(x),
    "jvp": lambda f, x, t: jax.jvp(f, (x,), (t,)),
    "vjp": lambda f, x, t: jax.vjp(f, x)[1](f(t)),
    "grad": lambda f, x, _: jax.grad(cubes(f))(x),
    "grad_of_grad": lambda f, x, _: jax.grad(lambda x: (jax.grad(cubes(f))(x) ** 2).sum())(x),
    "grad_of_jvp": lambda f, x, t: jax.grad(lambda x: jax.jvp(cubes(f), (x,), (t,))[1])(x),
    "vmap": lambda f, x, _: jax.vmap(f, 1, 1)(jnp.stack([x, x * 2], 1)),
    "grad_of_vmap": lambda f, x, _: jax.grad(cubes(jax.vmap(f)))(jnp.stack([x, x * 2])),
    "vmap_of_grad": lambda f, x, _: jax.vmap(jax.grad(cubes(f)), 3, 2)(jnp.stack([x, x * 2], 3)),
    "jacrev": lambda f, x, _: jax.jacrev(f)(x),
    "jacfwd": lambda f, x, _: jax.jacfwd(f)(x),
    "checkpoint": lambda f, x, _: jax.grad(jax.checkpoint(cubes(f)))(x),
}


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
def test_transformations(operation):
    x, t = normal(3, 4, 5), normal(4, 3, 5).swapaxes(0, 1)

    def transformed(f):
        return jax.jit(lambda x, t: {name: run(f, x, t) for name, run in TRANSFORMATIONS.items()})(x, t)

    actual, expected = map(transformed, operation)
    for name in TRANSFORMATIONS:
        for a, b in zip(jax.tree.leaves(actual[name]), jax.tree.leaves(expected[name]), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6, err_msg=name)


class TestDerivatives:
    """Tests without a counterpart among JAX's own operations."""

    @pytest.mark.usefixtures("wide")
    @pytest.mark.parametrize("index_dtype", INDEX_DTYPES, ids=str)
    def test_top_k_of_lengths(self, index_dtype):
        """Elements beyond the length of a row have no derivative."""
        x, lengths = normal(3, 4), jnp.asarray([4, 1, 0], index_dtype)

        def total(x):
            return top_k(x, 2, sorted=False, lengths=lengths, index_dtype=index_dtype).values.sum()

        assert jnp.count_nonzero(jax.grad(total)(x), 1).tolist() == [2, 1, 0]

    @pytest.mark.usefixtures("wide")
    @pytest.mark.parametrize("mode", ["clip", "fill"])
    @pytest.mark.parametrize("dtype", INDEX_DTYPES, ids=str)
    def test_gather_nd_of_every_index_type(self, mode, dtype):
        indices = [[1, 2], [1, 2], [3, 0], [0, np.iinfo(dtype).max]]
        if dtype.kind == "i":
            indices += [[-1, -9], [-3, -4], [np.iinfo(dtype).min, 0]]
        indices = np.array(indices, dtype)
        x = np.random.default_rng(5).normal(size=(3, 4, 2))
        gradient = jax.grad(lambda x: (gather_nd(x, indices, mode=mode) * 2).sum())(x)
        expected = np.zeros_like(x)
        elements = np.arange(x.size).reshape(x.shape) + 1
        for element in reference.gather_nd(elements, indices, mode=mode).flat:
            if element:
                expected.flat[element - 1] += 2
        np.testing.assert_array_equal(gradient, expected)

    def test_gather_nd_keeps_nan_out(self):
        _, pull = jax.vjp(lambda x: gather_nd(x, np.array([[2], [3]]), mode="fill"), jnp.zeros(3))
        assert pull(jnp.asarray([1.0, jnp.nan]))[0].tolist() == [0, 0, 1]

    def test_integers_have_none(self):
        x = jnp.arange(5)
        results, _ = jax.jvp(lambda x: top_k(x, 2), (x,), (np.zeros(5, jax.dtypes.float0),))
        assert results.values.tolist() == [4, 3]
        gradient = jax.grad(lambda x: (nonzero_coordinates(x, size=3).coordinates * x.sum()).sum())(normal(4))
        assert gradient.tolist() == [3, 3, 3, 3]


class TestErrors:
    """Raised while tracing, in the words of the functions."""

    @pytest.mark.parametrize(
        ("call", "text"),
        [
            (
                lambda x: top_k(x, 6),
                r"top_k\.k: got 6, but axis 1 of x has 5 elements; k must be in \[0, 5\]",
            ),
            (nonzero_coordinates, r"nonzero_coordinates\.size: got None, but jit, vmap and grad"),
            (lambda x: gather_nd(x, jnp.zeros((2, 1), int)), r"gather_nd\.mode: got 'raise', but jit, vmap"),
            (lambda x: diagonal_matrix(x, shape=(4, 5)), r"diagonal_matrix\.shape: got .*, but x is given"),
            (
                jax.vmap(lambda x: gather_nd(x, np.array([[2**32]]), mode="clip")),
                r"gather_nd\.indices: got integers from 4294967296 to 4294967296, but jax_enable_x64 is off",
            ),
            (
                lambda x: top_k(x, 1, lengths=np.array([-(2**40), 1])),
                r"top_k\.lengths: got integers from -1099",
            ),
            (
                lambda x: top_k(x, 1, lengths=[2**40, 1, 1, 1]),
                r"top_k\.lengths: got integers from 1 to 1099",
            ),
            (
                lambda x: top_k(x, 1, lengths=[2**64, 1, 1, 1]),
                r"top_k\.lengths: got 18446744073709551616, but no type of 64 bits holds",
            ),
        ],
    )
    def test_arguments(self, call, text):
        for transformed in (jax.jit(call), lambda x: jax.eval_shape(call, x)):
            with pytest.raises(InvalidDescriptorError, match=f"^{text}" if "\\" in text else text):
                transformed(jnp.zeros((4, 5)))

    @pytest.mark.parametrize(
        ("call", "text"),
        [
            (lambda x: top_k(x * 1j, 1), r"top_k\.x: got complex64, but complex numbers have no order"),
            (
                lambda x: top_k(jax.random.split(jax.random.key(0), 3), 1),
                r"top_k\.x: got key<fry>, but no operator",
            ),
            (lambda x: top_k(x, 1, largest=x[0, 0]), r"top_k\.largest: got .*, but it is not a truth value"),
            (
                lambda x: top_k(x, 1, lengths=jnp.ones(4, "int4")),
                r"top_k\.lengths: got int4, but no operator",
            ),
            (
                lambda x: top_k(x, 1, index_dtype="int64"),
                r"top_k\.index_dtype: got int64, but jax_enable_x64 is",
            ),
            (lambda x: gather_nd(x, x, mode="clip"), r"gather_nd\.indices: got "),
            (lambda x: diagonal_matrix(x, value=x[0, 0]), r"diagonal_matrix\.value: got a traced array"),
            (
                lambda x: diagonal_matrix(x, value=np.datetime64(1, "s")),
                r".*\.value: .*JAX has no such elements",
            ),
            (lambda x: diagonal_matrix(), r"diagonal_matrix\.shape: got None, but neither x nor shape"),
            (
                lambda x: diagonal_matrix(shape=(2, 2), dtype="int64"),
                r".*\.dtype: got int64, but jax_enable_x64",
            ),
            (lambda x: gather_nd(x, [x, x], mode="clip"), r"gather_nd\.indices: got arrays in a list"),
            (lambda x: top_k(np.ma.masked_array([1, 2]), 1), r"top_k\.x: got a masked array"),
            (lambda x: top_k(["text"], 1), r"top_k\.x: got list, but JAX cannot make an array"),
        ],
    )
    def test_types(self, call, text):
        with pytest.raises(TypeError, match=f"^{text}"):
            jax.jit(call)(jnp.zeros((4, 5)))

    @pytest.mark.parametrize("function", [lambda x: top_k(x, 3), lambda x: nonzero_coordinates(x, size=3)])
    def test_sizes_that_are_symbols(self, function):
        x = jax.ShapeDtypeStruct(jax.export.symbolic_shape("b, 9"), "float32")
        for called in (function, jax.vmap(function)):
            with pytest.raises(TypeError, match=r"\.x: got shape \(b, 9\), but a size is not known"):
                jax.export.export(jax.jit(called))(x)

    def test_feature_levels(self):
        x, lengths = normal(2, 3), jnp.ones(2, int)
        for _ in range(2):
            assert top_k(x, 1).indices.dtype == jnp.int32
            assert top_k(x, 1, lengths=lengths, index_dtype="uint32").indices.tolist() == [[0], [0]]
            with dmlops.feature_level(FeatureLevel.DML_6_4):
                assert top_k(x, 1).indices.dtype == jnp.uint32
                text = r"^top_k\.lengths: got an array, but DirectML"
                with pytest.raises(UnsupportedFeatureError, match=text):
                    top_k(x, 1, lengths=lengths, index_dtype="uint32")

    def test_compiled_functions_keep_their_level(self):
        x = normal(2, 5)
        compiled = jax.jit(lambda x: top_k(x, 2, lengths=jnp.array([2, 1])).indices).lower(x).compile()
        with dmlops.feature_level(FeatureLevel.DML_2_1):
            _, expected = reference.top_k(x, 2, lengths=np.array([2, 1]))
            np.testing.assert_array_equal(compiled(x), expected)

    def test_calls_that_are_none_of_ours(self):
        like = jax.ShapeDtypeStruct((2,), "float32")
        with pytest.raises(jax.errors.JaxRuntimeError, match="JSONDecodeError"):
            jax.block_until_ready(jax.ffi.ffi_call("dmlops", like)(jnp.zeros(2), call="nonsense"))
        with pytest.raises(jax.errors.JaxRuntimeError, match="a call of dmlops has one attribute, a string"):
            jax.block_until_ready(jax.ffi.ffi_call("dmlops", like)(jnp.zeros(2)))

    def test_without_jax(self):
        script = """
            import sys
            sys.modules["jax"] = None
            try:
                import dmlops.integrations.jax
            except ImportError as error:
                print(error)
        """
        assert 'type: pip install "dmlops[jax]"' in run_script(script)


def test_several_devices_and_another_process(tmp_path):
    """Batches that are spread over devices, what another process has exported, and an early end."""
    x = normal(8, 9)
    safe = jax.export.DisabledSafetyCheck.custom_call("dmlops")
    export = partial(jax.export.export, disabled_checks=[safe], platforms=["cpu"])
    exported = export(jax.jit(lambda x: tuple(top_k(x, 3))))(x)
    np.save(tmp_path / "x.npy", x)
    (tmp_path / "exported").write_bytes(exported.serialize())
    script = """
        from functools import partial
        from pathlib import Path
        import jax, numpy as np
        from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
        import dmlops, pytest
        from dmlops.integrations.jax import diagonal_matrix, gather_nd, nonzero_coordinates, top_k

        def check(results, expected):
            for result, answer in zip(results, expected, strict=True):
                np.testing.assert_array_equal(result, answer)

        x = jax.numpy.asarray(np.load(FOLDER + "/x.npy"))
        expected = jax.lax.top_k(x, 3)
        program = jax.export.deserialize(bytearray(Path(FOLDER, "exported").read_bytes()))
        check(program.call(x), expected)

        mesh = jax.make_mesh((4,), ("b",), axis_types=(AxisType.Auto,))
        sharded = jax.device_put(x, NamedSharding(mesh, P("b")))
        check(top_k(sharded, 3), expected)
        with pytest.raises(TypeError, match="a sharded array, but it is spread over 4 devices"):
            dmlops.top_k(sharded, 3)

        spread = partial(jax.shard_map, mesh=mesh, in_specs=P("b"), out_specs=P("b"))
        check(jax.jit(spread(lambda x: tuple(top_k(x, 3))))(sharded), expected)
        total = lambda x: (spread(lambda x: top_k(x, 3).values)(x) ** 2).sum()
        plain = lambda x: (jax.lax.top_k(x, 3)[0] ** 2).sum()
        check([jax.jit(jax.grad(total))(sharded)], [jax.grad(plain)(x)])

        # The type of an array that is spread over explicit axes says so.
        mesh = jax.make_mesh((4,), ("b",), axis_types=(AxisType.Explicit,))
        with jax.set_mesh(mesh):
            sharded = jax.device_put(x, NamedSharding(mesh, P("b")))
            check(jax.jit(lambda x: tuple(top_k(x, 3)))(sharded), expected)
            indices = np.array([[1], [-1], [1]])
            for ours, of_jax in (
                (lambda x: top_k(x, 3).values, lambda x: jax.lax.top_k(x, 3)[0]),
                (lambda x: gather_nd(x, indices, mode="clip"), lambda x: x[indices[:, 0]]),
                (jax.vmap(lambda x: top_k(x, 3).values), lambda x: jax.lax.top_k(x, 3)[0]),
                (
                    jax.vmap(lambda x: gather_nd(x, indices, mode="fill")),
                    lambda x: x[:, indices[:, 0]],
                ),
                (lambda x: diagonal_matrix(x, value=3), lambda x: x * (np.eye(8, 9) == 0)),
            ):
                found = jax.grad(lambda x: (ours(x) ** 2).sum())(sharded)
                assert jax.typeof(found) == jax.typeof(sharded)
                check([found], [jax.grad(lambda x: (of_jax(x) ** 2).sum())(x)])
            coordinates, counts = jax.vmap(lambda x: nonzero_coordinates(x > 0, size=9))(sharded)
            assert counts.sharding.spec == P("b")
            check([counts], [(x > 0).sum(1)])

        expected = [answer.reshape(4, 2, 3) for answer in expected]
        check(jax.pmap(lambda x: tuple(top_k(x, 3)))(x.reshape(4, 2, 9)), expected)

        def step(x, _):
            return x + top_k(x, 3).values[:, :1], None

        # The process ends while these still run.
        long = jax.jit(lambda x: jax.lax.scan(step, x, length=100_000)[0])
        long(x)
        held = long(x + 1)
    """
    run_script(
        f"FOLDER = {str(tmp_path)!r}\n",
        script,
        XLA_FLAGS="--xla_force_host_platform_device_count=4",
        JAX_PLATFORMS="cpu",
    )


def test_a_signal_before_a_handler_is_an_error():
    """ctypes drops an exception that a signal raises before the first line of a callback."""
    script = """
        import sys
        import jax
        jax.config.update("jax_cpu_enable_async_dispatch", False)  # handlers run in this thread
        from tests.inside import xla_ffi
        from dmlops.integrations.jax import top_k

        x = jax.numpy.arange(9.0)
        selected = jax.jit(lambda x: top_k(x, 2).indices)
        for _ in range(3):
            assert selected(x).tolist() == [8, 7]

        def interrupt(frame, event, argument):
            if frame.f_code.co_filename == xla_ffi.__file__:
                sys.setprofile(None)
                raise KeyboardInterrupt

        sys.unraisablehook = lambda unraisable: print("dropped", unraisable.exc_type.__name__)
        sys.setprofile(interrupt)
        try:
            jax.block_until_ready(selected(x))
        except Exception as error:
            print(error)
        sys.setprofile(None)
        assert selected(x).tolist() == [8, 7]
    """
    printed = run_script(script, JAX_PLATFORMS="cpu")
    assert printed.startswith("dropped KeyboardInterrupt\n")
    assert "a signal interrupted the computation" in printed


def test_the_documentation():
    run_page("docs/integrations/jax.md")


@pytest.mark.parametrize("listed", [[], [[]], [[], []]], ids=str)
def test_index_tuples_without_coordinates_in_lists(listed):
    found = gather_nd(jnp.ones((2, 3)), listed, mode="clip")
    assert found.shape == (*np.shape(listed)[:-1], 2, 3)
