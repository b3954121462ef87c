"""Reports against other libraries: what was wrong, and calls that dmlops has to answer as NumPy does."""

import numpy as np
from ml_dtypes import bfloat16

from tests.cases import Case
from tests.data import INDEX_DTYPES, float_from_bits, random

INT32_MAX, INT64_MIN, INT64_MAX = 2**31 - 1, -(2**63), 2**63 - 1
# Farther from the main diagonal than any element of any matrix.
FAR = 2**100
INF, NAN = np.inf, np.nan
POSITIVE_NAN, NEGATIVE_NAN = float_from_bits([0x7FC00000, 0xFFC00000], "float32")
BOTH = (True, False)


def normal(name, shape, dtype="float32"):
    """Return normally distributed values."""
    return random(name).standard_normal(shape).astype(dtype)


def uniform(name, shape, dtype="float32"):
    """Return numbers of [0, 1)."""
    return random(name).random(shape, "float32").astype(dtype)


def floats(*values, dtype="float32"):
    """Return an array of numbers."""
    return np.array(values, dtype)


def replaced(x, *pairs):
    """Return an array in which the elements at these indices have other values."""
    x = x.copy()
    for index, value in pairs:
        x[index] = value
    return x


def top_k(x, k, **options):
    """Return a case of top_k; its name says the type, which some libraries lack."""
    return Case("top_k", f"{x.dtype}", lambda: (x,), (k,), options)


def nonzero(x, **options):
    """Return a case of nonzero_coordinates."""
    return Case("nonzero_coordinates", f"{x.dtype}", lambda: (x,), (), options)


def gather(x, indices, **options):
    """Return a case of gather_nd."""
    return Case("gather_nd", f"{x.dtype}", lambda: (x, np.asarray(indices)), (), options)


def band(x, begin, end, value=0):
    """Return a case of diagonal_matrix."""
    return Case(
        "diagonal_matrix", f"{x.dtype}", lambda: (x,), (), {"value": value, "begin": begin, "end": end}
    )


def triangles(x, *ks):
    """Return cases of triu and tril."""
    return [case for k in ks for case in (band(x, -FAR, k), band(x, k + 1, FAR))]


def _ties(above, ties, n):
    x = replaced(
        np.zeros(n, "float32"), (slice(above), np.arange(above) + 2), (slice(above, above + ties), 1)
    )
    return top_k(random(n).permutation(x), 2048)


def _few_at(rows):
    x = np.zeros((2, 3, 500_000), "float32")
    np.put_along_axis(x[1], rows, uniform("rows", (3, 20)) + 1, axis=-1)
    return x


# By the page on GitHub: what was wrong, and a function that returns the calls.
TOP_K = {
    "microsoft/onnxruntime/issues/9843": (
        "ONNX Runtime's CUDA TopK returned random values and indices where the k-th value is infinite",
        lambda: [
            top_k(
                replaced(normal("inf", (1, 10000)), (np.s_[:, ::3], INF if largest else -INF)),
                1000,
                largest=largest,
            )
            for largest in BOTH
        ],
    ),
    "NVIDIA/raft/issues/1822": (
        "Some algorithms of RAFT's select_k replaced the indices of infinities, and others did not",
        lambda: [
            top_k(
                replaced(np.full((2, n), INF, "float32"), (np.s_[:, n // 2 :: n // 3], 1)), k, largest=False
            )
            for n, k in ((20, 10), (300, 40), (5000, 256), (5000, 2049), (90_000, 100))
        ],
    ),
    "tenstorrent/tt-llk/issues/599": (
        "Tenstorrent's top-k returned wrong rows of finite values next to a row of infinities",
        lambda: [top_k(replaced(normal("rows", (1, 1, 4, 16 * 1024), bfloat16), (np.s_[:, :, 1], INF)), 32)],
    ),
    "pytorch/pytorch/pull/184620": (
        "torch's sort on Apple GPUs returned indices of its padding, which ties with the largest value",
        lambda: [
            top_k(x, len(x), largest=largest)
            for largest in BOTH
            for x in (
                np.array([True, False, True, False, True]),
                floats(1, NAN, 2, NAN, 3),
                floats(1, INT32_MAX, 2, dtype="int32"),
                floats(INF, 0, INF),
            )
        ],
    ),
    "pytorch/pytorch/issues/16762": (
        "torch's top-k had trouble with rows that hold both infinities and NaN",
        lambda: [top_k(floats(NAN, INF, INF, 3, *[INF] * 6), 2, largest=largest) for largest in BOTH],
    ),
    "openxla/xla/issues/48119": (
        "XLA's GPU top-k for k up to 16 corrupted its output where -NaN is present",
        lambda: [
            top_k(
                replaced(normal("1024", 1024), ([3, 500], NEGATIVE_NAN), ([4, 19], POSITIVE_NAN), (1, INF)),
                16,
            )
        ],
    ),
    "jax-ml/jax/issues/6443": (
        "JAX sorted -NaN before -inf, and [0.0, -0.0] to [-0.0, 0.0], where NumPy keeps the order",
        lambda: [
            top_k(x, len(x), largest=largest)
            for x in (floats(NEGATIVE_NAN, POSITIVE_NAN, -INF, INF, -1, 1), floats(0.0, -0.0))
            for largest in BOTH
        ],
    ),
    "numpy/numpy/issues/21838": (
        "NumPy 1.23 looked float16 up under another type's number, and lost values next to a NaN",
        lambda: [top_k(floats(1, NAN, 0, -1, -NAN, dtype="float16"), 5, largest=largest) for largest in BOTH],
    ),
    "NervanaSystems/ngraph/pull/2710": (
        "nGraph's TopK selected the last of two equal values that compete for the last place",
        lambda: [
            top_k(floats([1, 2, 2, 3], [3, 4, 5, 5], [6, 6, 6, 6]), k, largest=largest)
            for k, largest in ((2, True), (1, False))
        ],
    ),
    "PaddlePaddle/Paddle/issues/25626": (
        "PaddlePaddle's top-k, an unstable sort, ordered ties differently on each machine",
        lambda: [
            top_k(
                floats(
                    [[2, 2, 2, 2], [3, 3, 2, 3], [4, 4, 3, 4]], [[5, 5, 6, 6], [7, 7, 7, 7], [6, 7, 10, 8]]
                ),
                2,
            )
        ],
    ),
    "sgl-project/sglang/pull/30512": (
        "SGLang's top-k of 2048 left output slots unwritten where more than 1024 values tied at the cut",
        lambda: [_ties(889, 1536, 7613), _ties(925, 1191, 5328)],
    ),
    "sgl-project/sglang/issues/36807": (
        "SGLang's top-k lost elements where more than 4096 shared the leading bits of the k-th value",
        lambda: [top_k(1 + uniform("bucket", (2, 65_536)) / 1024, 2048)],
    ),
    "NVIDIA/cccl/pull/5677": (
        "CUB's device-wide top-k selects any of the keys that tie at the cut, others in each run",
        lambda: [top_k(replaced(np.zeros(200_000, "int32"), (np.s_[1000::1000], 1)), 300)],
    ),
    "NVIDIA/cccl/pull/9470": (
        "CUB's BlockTopK lost keys where -0.0 and 0.0 tied among the largest",
        lambda: [
            top_k(
                np.append(np.where(uniform("zeros", 500) < 0.5, -0.0, 0.0), [-1, 1]).astype("f4"),
                200,
                largest=largest,
            )
            for largest in BOTH
        ],
    ),
    "tensorflow/tensorflow/issues/22383": (
        "TensorFlow's top_k with sorted=False shuffled values and indices of floats differently",
        lambda: [top_k(normal("unsorted", (4, 300)), 40, sorted=False)],
    ),
    "arrayfire/arrayfire/issues/2283": (
        "ArrayFire's CUDA top-k gave incorrect values for k beyond 256",
        lambda: [top_k(normal("k256", (3, 5000)), k) for k in (256, 257, 300, 2000)],
    ),
    "NVIDIA/TensorRT/issues/216": (
        "TensorRT returned NaN for k = 20 along axis 2 of (4, 128, 21128, 1, 1), though not for k = 10",
        lambda: [top_k(uniform("softmax", (2, 3, 21128, 1, 1)), 20, axis=2)],
    ),
    "microsoft/onnxruntime/pull/3176": (
        "ONNX Runtime's CUDA TopK returned only zeros for sizes between one and two blocks of threads",
        lambda: [top_k(np.arange(n, dtype="float32"), 5) for n in (257, 300, 511, 512)],
    ),
    "anilshanbhag/gpu-topk/issues/1": (
        "A paper's bitonic top-k exited or gave wrong results unless n and k were powers of two",
        lambda: [
            top_k(normal("powers", n), k) for n, k in ((100, 3), (1000, 33), (4095, 17), (257, 255), (31, 7))
        ],
    ),
    "iree-org/iree/issues/17275": (
        "IREE's CUDA top-k returned elements twice where a row of 256 repeated its values",
        lambda: [
            top_k(
                replaced(
                    np.tile(floats(1, 2, 3, 4), (1, 64)), (np.s_[0, [0, 16, 32, 48]], 1.3), ((0, 135), 123.45)
                ),
                k,
            )
            for k in (1, 2, 10, 70)
        ],
    ),
    "tensorflow/tensorflow/issues/5719": (
        "TensorFlow's GPU top-k failed for 6140 doubles and worked for 6139",
        lambda: [top_k(normal("doubles", (1, n), "float64"), 1) for n in (6139, 6140)],
    ),
    "pytorch/pytorch/issues/4490": (
        "torch's CUDA top-k stopped at an assertion along axis 0 of a tensor of shape (25, 1, 9)",
        lambda: [top_k(normal("small", (25, 1, size)), 3, axis=0) for size in range(8, 16)],
    ),
    "pytorch/pytorch/issues/95455": (
        "torch's CUDA top-k returned indices such as 2033619248 for rows of 500000 elements",
        lambda: [top_k(_few_at(np.array([[0], [250_000], [499_979]]) + np.arange(20)), 20, sorted=False)],
    ),
    "pytorch/pytorch/issues/49205": (
        "torch failed an assertion for k = 0 of floats, though not of integers",
        lambda: [
            top_k(np.ones(shape, dtype), 0, largest=False)
            for shape in ((11,), (3, 4))
            for dtype in ("int64", "float32")
        ],
    ),
    "pytorch/pytorch/issues/58841": (
        "torch's CPU top-k took float16 scalars, and refused float16 matrices",
        lambda: [
            top_k(np.array(2.5, "float16"), 1, axis=0),
            top_k(floats([1, 2.5], dtype="float16"), 1),
        ],
    ),
    "pytorch/pytorch/issues/56176": (
        "torch's CUDA top-k of bfloat16 was implemented for rows of up to 2048 elements only",
        lambda: [top_k(normal("bfloat16", n, bfloat16), 5) for n in (2048, 2049, 3072)],
    ),
    "intel/torch-xpu-ops/issues/1147": (
        "torch's XPU top-k selected wrong elements for the larger half of 2000 16-bit floats",
        lambda: [top_k(uniform("half", (1, 2000), dtype), 1000) for dtype in (bfloat16, "float16")],
    ),
    "numpy/numpy/issues/25382": (
        "NumPy's vectorised float16 sort read out of bounds, because 'size - 16' wrapped for short arrays",
        lambda: [top_k(normal("short", n, "float16"), n) for n in (*range(1, 40), 63, 64, 65)],
    ),
    "microsoft/onnxruntime/pull/27860": (
        "ONNX Runtime's TopK had no int8, int16 and uint8",
        lambda: [
            top_k(
                random("small").integers(info.min, info.max + 1, (3, 400)).astype(info.dtype),
                60,
                largest=largest,
            )
            for info in map(np.iinfo, ("int8", "int16", "uint8"))
            for largest in BOTH
        ],
    ),
    "NVIDIA/cub/issues/310": (
        "CUB's radix sort in two passes mishandled the end of the key for signed types",
        lambda: [
            top_k(replaced(x, ([5, 2000], info.min), ([9, 1000], info.max)), 3000, largest=largest)
            for info in map(np.iinfo, ("int8", "int16", "int32", "int64"))
            for x in [random("signed").integers(info.min, info.max, 3000, info.dtype, endpoint=True)]
            for largest in BOTH
        ],
    ),
    "tenstorrent/tt-metal/issues/25783": (
        "Tenstorrent took integers for equal that differ in the last bits only",
        lambda: [
            top_k(
                np.array([2**53, 2**53 + 1, 2**53 - 1, INT64_MAX, INT64_MAX - 1, INT64_MIN, INT64_MIN + 1]), 7
            )
        ],
    ),
    "tensorflow/tensorflow/issues/61692": (
        "TensorFlow's compiled top_k with int32 indices returned other values than the maximum",
        lambda: [
            top_k(normal("transposed", shape).T, 1, index_dtype="int32")
            for shape in ((1024, 3), (1023, 3), (1024, 2))
        ],
    ),
    "pytorch/pytorch/pull/9441": (
        "torch's CUDA top-k was wrong for non-contiguous tensors, and a proposed fix was to refuse them",
        lambda: [
            top_k(
                replaced(normal("padding", (6, 90)), (np.s_[:, :3], 1e30), (np.s_[:, 80:], 1e30))[:, 3:80], 9
            )
        ],
    ),
    "cupy/cupy/issues/5427": (
        "A CuPy view claimed to be contiguous but had a stride of -1, and was read backwards",
        lambda: [
            top_k(np.arange(60, dtype="uint16").reshape(3, 20)[:, ::-1], 2),
            top_k(np.arange(60, dtype="uint16").reshape(3, 20)[::-1, 1:0:-1], 1),
        ],
    ),
    "pytorch/pytorch/pull/58318": (
        "torch's CUDA top-k sorted the selected values in place, which the sort behind it cannot do",
        lambda: [top_k(normal("in place", 10_000), k) for k in (3000, 10_000)],
    ),
}
NONZERO = {
    "cupy/cupy/issues/4166": (
        "CuPy's argwhere gave a 0-d array one column",
        lambda: [nonzero(np.array(value, "int32")) for value in (0, 3)],
    ),
    "cupy/cupy/issues/252": (
        "CuPy's nonzero launched an invalid kernel for arrays without elements",
        lambda: [nonzero(np.ones(shape)) for shape in ((), (0,), (1,), (0, 2), (0, 0, 2, 0))],
    ),
    "cupy/cupy/issues/569": (
        "CuPy's nonzero returned wrong coordinates beyond 128 * 65536 elements, where its grid ended",
        lambda: [nonzero(replaced(np.zeros(128 * 65536 + 1), (np.s_[-2:], 1)))],
    ),
    "numpy/numpy/issues/9304": (
        "NumPy's nonzero of six dimensions gave other coordinates from run to run",
        lambda: [nonzero(uniform(2, (10, 2, 3, 4, 5, 6)) + 1)] * 10,
    ),
    "numpy/numpy/issues/23196": (
        "NumPy's nonzero of large matrices returned columns such as 1152921504606848384",
        lambda: [nonzero(np.ones((4000, 300), bool))],
    ),
    "intel/torch-xpu-ops/issues/4396": (
        "torch's XPU nonzero returned 0 of 100, some 307 of 600 and 37824 of 1000000 rows",
        lambda: [nonzero(random(found).permutation(2 * found) < found) for found in (100, 600, 1_000_000)],
    ),
    "pytorch/pytorch/pull/59149": (
        "A first port of torch's CPU nonzero visited channels-last tensors in the order of their memory",
        lambda: [nonzero(random("channels").integers(0, 2, (2, 5, 6, 3)).astype("f4").transpose(0, 3, 1, 2))],
    ),
    "jax-ml/jax/issues/7129": (
        "JAX's nonzero of a fixed size returned the same for 'only element 0' and for 'nothing'",
        lambda: [
            nonzero(np.zeros(5), size=1, fill_value=0),
            nonzero(np.eye(1, 5)[0], size=1, fill_value=0),
            nonzero(np.zeros(5), size=1, fill_value=-1, index_dtype="int64"),
        ],
    ),
    "nv-legate/cupynumeric/pull/285": (
        "cuPyNumeric's nonzero made its result in the type of the input",
        lambda: [
            nonzero(replaced(np.zeros((300, 70_000), dtype), ((299, 69_999), 1), ((256, 65_536), 1)))
            for dtype in ("uint8", "int8", "bool")
        ],
    ),
    "tensorflow/tensorflow/issues/119380": (
        "TensorFlow's compiled masks and partitions silently corrupted odd sizes of 16-bit types",
        lambda: [
            nonzero(np.arange(n).astype(dtype) % 3)
            for n in (1, 3, 5, 7, 1001)
            for dtype in ("int16", "float16", "uint16")
        ],
    ),
}
GATHER = {
    "apache/tvm/issues/20297": (
        "TVM's gather_nd read other memory for negative indices and for those out of range",
        lambda: [
            gather(replaced(np.full((6, 9), 99), (np.s_[1:4, 2:7], 1))[1:4, 2:7], picks, mode=mode)
            for picks in [random("tvm").integers(-20, 20, (300, 2))]
            for mode in ("clip", "fill")
        ],
    ),
    "tensorflow/tensorflow/issues/12608": (
        "TensorFlow's GPU gather_nd returned zeros for indices out of range, where its CPU raised",
        lambda: [
            gather(np.ones(shape), indices, mode=mode)
            for shape, indices in (((5, 5, 5), [[6, 6, 6]]), ((1, 5), [[-50_000_000_000_000_000]]))
            for mode in ("clip", "fill")
        ],
    ),
    "chainer/chainer/issues/4648": (
        "CuPy wraps indices out of range around, so that element 5 of 5 is element 0",
        lambda: [gather(np.arange(5) + 1, np.arange(7)[:, None], mode=mode) for mode in ("clip", "fill")],
    ),
    "jax-ml/jax/issues/28998": (
        "A JAX user took it for a bug that mode='fill' fills only below -n",
        lambda: [gather(np.ones(4), np.arange(-10, 10)[:, None], mode="fill")],
    ),
    "Xilinx/onnx-mlir/pull/1003": (
        "The ONNX-MLIR verifier of GatherND crashed for unsigned index types",
        lambda: [
            gather(np.arange(200, dtype="float32"), np.array([[0], [127], [128], [199]], dtype))
            for dtype in INDEX_DTYPES
        ],
    ),
    "jax-ml/jax/issues/16557": (
        "JAX counted 256 batches in the int8 of the indices, and returned NaN for the second half",
        lambda: [gather(np.arange(70_000.0)[:, None], np.zeros((70_000, 1, 1), "int32"), batch_dims=1)],
    ),
    "tensorflow/tensorflow/issues/50246": (
        "TensorFlow's gather_nd refused to take a slice without elements",
        lambda: [gather(np.zeros((2, 0, 5)), [[0]])],
    ),
    "microsoft/tensorflow-directml/pull/178": (
        "tensorflow-directml crashed in GatherND where the last dimension of the indices is 0",
        lambda: [gather(normal("tuples", (3, 3)), np.zeros((2, 0), dtype)) for dtype in ("int32", "uint64")],
    ),
    "ggml-org/ggml/issues/877": (
        "ggml's CUDA get_rows failed beyond 65535 rows, the limit of a grid's second dimension",
        lambda: [
            gather(np.arange(2 * rows).reshape(rows, 2), np.arange(rows)[::-1, None].copy())
            for rows in (65_535, 65_536, 200_000)
        ],
    ),
    "tenstorrent/tt-xla/issues/4329": (
        "A gather of vocabulary numbers that Tenstorrent's compiler lowered to an embedding corrupted them",
        lambda: [
            gather(np.array([257, 50_257, 16_777_217, top, top - 1], dtype), np.arange(5)[:, None])
            for dtype in ("int32", "int64", "uint64")
            for top in [np.iinfo(dtype).max]
        ],
    ),
}
DIAGONAL = {
    "pytorch/pytorch/pull/153240": (
        "torch's triu overflowed for a diagonal of 2^63 - 1, and left ones behind",
        lambda: triangles(
            *(
                np.ones((5, 5), "f4"),
                INT64_MAX,
                INT64_MIN,
                INT64_MAX - 4,
                INT32_MAX,
                -(2**31),
                2**64,
                -(2**64),
            )
        ),
    ),
    "tensorflow/tensorflow/issues/110316": (
        "TensorFlow's band_part raised for a band wider than the matrix, and compiled it returned all",
        lambda: triangles(np.full((2, 2), 17, "int32"), -6, -3, -2, 2, 3, 6),
    ),
    "numpy/numpy/pull/29491": (
        "NumPy's triu_indices overflowed for bounds of type uint64",
        lambda: [band(np.ones((4, 5)), np.uint64(1), np.uint64(2**64 - 1))],
    ),
    "mindspore-ai/mindspore/issues/372": (
        "MindSpore's tril left NaN in place of the infinities that it should have removed",
        lambda: triangles(floats([NAN, INF, -INF], [-1, 1, 1e-6]), 0),
    ),
    "pytorch/pytorch/issues/22581": (
        "torch's CPU triu read outside a tensor of shape (1, 4, 4, 4) with exchanged axes",
        lambda: triangles(normal("batch", (1, 4, 4, 4)).transpose(1, 0, 2, 3), -1, 0, 2),
    ),
    "pytorch/pytorch/issues/2749": (
        "torch's CUDA triu of one matrix of a batch was shifted, because it ignored where the matrix begins",
        lambda: [band(np.ones((3, 4, 4), "float32")[place], -FAR, 0) for place in range(3)],
    ),
    "pytorch/pytorch/issues/15226": (
        "torch's CUDA triu of a matrix of 2028 rows and one column kept the wrong side",
        lambda: [
            case for shape in ((2028, 1), (1, 2028)) for case in triangles(np.ones(shape, "int64"), -2, 0, 2)
        ],
    ),
    "pytorch/pytorch/pull/21067": (
        "torch's CUDA triu failed for more than 65535 matrices, the limit of a grid's second dimension",
        lambda: [
            case
            for n in (65_535, 65_536, 70_000)
            for x in [np.arange(4 * n).reshape(n, 2, 2)]
            for case in (*triangles(x, 1), *triangles(x.swapaxes(1, 2), 0))
        ],
    ),
    "pytorch/pytorch/pull/144545": (
        "torch's triu on Apple GPUs was wrong for tensors of more than three dimensions",
        lambda: [
            case
            for shape in ((2, 3, 4, 4), (2, 1, 3, 4, 5))
            for case in triangles(normal("dimensions", shape), -1, 0, 1)
        ],
    ),
}
ANSWERED = TOP_K | NONZERO | GATHER | DIAGONAL
