"""`dmlops.integrations.jax` on a GPU: XLA's streams and CUDA graphs, several devices, several threads.

The answers are tested together with those of the CPU.
"""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

jax = pytest.importorskip("jax")

from jax.sharding import NamedSharding, PartitionSpec  # noqa: E402

import dmlops  # noqa: E402
from dmlops.integrations.jax import gather_nd, nonzero_coordinates, top_k  # noqa: E402
from tests import reference  # noqa: E402
from tests.data import sample  # noqa: E402
from tests.scripts import run_script  # noqa: E402

GRAPHS = "--xla_gpu_graph_min_graph_size=1 --xla_gpu_enable_command_buffer=FUSION,CUBLAS,CUDNN,CUSTOM_CALL"

CHAIN = """
import jax, numpy as np
from dmlops.integrations import jax as dmlops_jax
from tests.inside import xla_calls

captured = []


class Recording(xla_calls.Stream):
    def __enter__(self):
        captured.append(xla_calls.cuda_driver.is_capturing(self.handle))
        return super().__enter__()


xla_calls.Stream = Recording


@jax.jit
def chain(x):
    sums = []
    for _ in range(4):
        values, indices = dmlops_jax.top_k(x, 100)
        x = x.at[np.arange(32)[:, None], indices].add(-values)
        x = dmlops_jax.diagonal_matrix(x, value=0, begin=3, end=9)
        coordinates, count = dmlops_jax.nonzero_coordinates(x > 0.5, size=5000)
        sums.append(dmlops_jax.gather_nd(x, coordinates, mode="clip"))
    return x, count, sums


def expected(x):
    x, sums = x.copy(), []
    for _ in range(4):
        indices = np.argsort(-x, axis=-1, kind="stable")[:, :100]
        values = np.take_along_axis(x, indices, -1)
        np.put_along_axis(x, indices, values - values, -1)
        rows, columns = np.indices(x.shape)
        x[(columns - rows >= 3) & (columns - rows < 9)] = 0
        found = np.argwhere(x > 0.5)
        coordinates = np.zeros((5000, 2), int)
        coordinates[: len(found)] = found[:5000]
        sums.append(x[tuple(coordinates.T)])
    return x, len(found), sums


rng = np.random.default_rng(7)
for _ in range(6):
    x = rng.random((32, 3000), "float32")
    jax.tree.map(np.testing.assert_array_equal, chain(x), expected(x))
print(any(captured))
# The process ends while these still run.
held = [chain(jax.numpy.asarray(x) + i) for i in range(20)]
"""


@pytest.mark.parametrize("flags", ["--xla_gpu_enable_command_buffer=", GRAPHS])
def test_a_chain_of_calls(flags):
    printed = run_script(CHAIN, XLA_FLAGS=flags, XLA_PYTHON_CLIENT_PREALLOCATE="false")
    assert printed.split() == [str(flags == GRAPHS)]


def test_nothing_goes_to_the_host():
    @jax.jit
    def every(x, indices):
        return top_k(x, 7), nonzero_coordinates(x, size=9), gather_nd(x, indices, mode="clip")

    arguments = jax.device_put((sample("float32", (50, 300), "jax"), np.array([[3], [99]])))
    jax.block_until_ready(every(*arguments))
    with jax.transfer_guard("disallow"):
        jax.block_until_ready(every(*arguments))


def test_arrays_of_the_host_stay_there():
    host = jax.devices("cpu")[0]
    given = jax.device_put(np.float32([[3, 1, 2]]), host)
    for results in (dmlops.top_k(given, 2), dmlops.nonzero_coordinates(given), [dmlops.tril(given)]):
        assert all(result.devices() == {host} for result in results)


def test_threads():
    def run(rows):
        x = sample("float32", (rows, 3000), "jax threads")
        on_gpu, selected = jax.device_put(x), jax.jit(lambda x: top_k(x, 9).indices)
        results = [selected(on_gpu) for _ in range(50)]
        _, expected = reference.top_k(x, 9)
        for result in results:
            np.testing.assert_array_equal(result, expected)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(run, range(1, 9)))


@pytest.mark.parametrize("most", [1, pytest.param(4, marks=pytest.mark.two_gpus)])
def test_devices(most):
    x = sample("float32", (8, 70_000), "jax devices")
    expected = reference.top_k(x, 30)
    devices = jax.devices()[:: max(1, len(jax.devices()) // most)][:most]
    for device in devices:
        results = jax.jit(lambda x: top_k(x, 30))(jax.device_put(x, device))
        jax.tree.map(np.testing.assert_array_equal, tuple(results), expected)
        assert results.values.devices() == {device}
    mesh = jax.sharding.Mesh(devices, ("rows",))
    rows = PartitionSpec("rows")
    spread = jax.shard_map(lambda x: tuple(top_k(x, 30)), mesh=mesh, in_specs=rows, out_specs=rows)
    sharded = jax.device_put(x, NamedSharding(mesh, rows))
    for _ in range(3):
        results = jax.jit(spread)(sharded)
        assert len(results[0].devices()) == len(devices)
        jax.tree.map(np.testing.assert_array_equal, results, expected)
