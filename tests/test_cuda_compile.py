"""CUDA kernels compile for every architecture without a GPU, and keep their values in registers."""

import importlib
import random
import re

import numpy as np
import pytest

pytest.importorskip("numba_cuda")
pytest.importorskip("cuda.core")
from tests import inside
from tests.cuda_plans import planned
from tests.cuda_ptx import ptx_of
from tests.inside import compilers, cuda, dispatch
from tests.marks import COMPILE_ALL, exhaustive, nightly
from tests.test_cuda_plans import PROBLEMS

compiler = inside.compiler
block_launches = inside.block_launches
capability_of = inside.variant.capability_of

ELF_MAGIC = b"\x7fELF"
OPERATORS = tuple(operator.name for operator in dispatch.OPERATORS.values())
# Operators share some kernels; a kernel's label stands for its code.
VARIANTS = {
    variant.label: variant for operator in OPERATORS for variant in inside.cuda_kernels(operator).variants()
}
# Bytes that a thread of some kernels may spill, from 9.0 on and before: their registers are limited, so that
# several blocks share a multiprocessor. All others spill none.
MOST_SPILLED = {
    "dmlops_sample_kept_": (420, 0),
    "dmlops_sample_rows_": (2750, 4340),
    "dmlops_sample_shards_": (1080, 1350),
    "dmlops_sample_unfiltered_": (960, 1270),
    "dmlops_top_k_block_8_": (1410, 1630),
    "dmlops_top_k_block_": (550, 850),
    "dmlops_top_k_digit_8": (480, 310),
    "dmlops_top_k_digit_": (180, 310),
    "dmlops_top_k_keep_8": (0, 220),
    "dmlops_top_k_keep_": (0, 10),
    "dmlops_top_k_selected_8": (240, 500),
    "dmlops_top_k_selected_": (0, 200),
    "dmlops_top_k_result_sort_": (170, 1600),
    "dmlops_top_k_numbered_8_": (2340, 2950),
    "dmlops_top_k_numbered_": (1550, 2350),
    "dmlops_top_k_shared_rounds_2_": (40, 0),
    "dmlops_top_k_lanes_": (200, 0),
    "dmlops_top_k_transposed_maxima_": (0, 0),
    "dmlops_top_k_maxima_": (30, 30),
    "dmlops_top_k_sort_": (250, 1600),
    "dmlops_top_k_partition_8_": (150, 1250),
    "dmlops_top_k_partition_": (60, 3050),
    "dmlops_top_k_columns_8_32": (0, 210),
    "dmlops_top_k_histogram_": (170, 170),
    "dmlops_top_k_list_": (60, 60),
    "dmlops_top_k_one_pass_": (200, 250),
    "dmlops_top_k_finish_8": (1700, 1700),
    "dmlops_top_k_finish_": (550, 550),
}


def linked(ptx, arch, max_registers=None):
    """Return the cubin of a kernel, and what the assembler says of it."""
    core = importlib.import_module("cuda.core")
    options = core.LinkerOptions(arch=arch, max_register_count=max_registers, verbose=True)
    linker = core.Linker(core.ObjectCode.from_ptx(ptx.encode()), options=options)
    code = bytes(linker.link("cubin").code)
    log = linker.get_info_log()
    linker.close()
    return code, log


def assemble(ptx, arch, max_registers):
    """Return the cubin of a kernel, and how many bytes a thread stores to and loads from where it spills."""
    code, log = linked(ptx, arch, max_registers)
    (spills,) = re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads", log)
    return code, sum(map(int, spills))


def check_shared_memory(variant, ptx):
    """Check that a kernel has no more shared memory of its own than plans count with."""
    n_bytes = sum(map(int, re.findall(r"\.shared .*\[(\d+)\];", ptx)))
    if variant.name == "top_k_block":
        assert n_bytes <= block_launches.block_static_bytes(variant.parameters[1])
    elif variant.name == "sample_kept":
        assert n_bytes <= inside.cuda_kernels("sample", "parameters").KEPT_BYTES
    else:
        assert n_bytes <= 48 << 10


def test_a_label_stands_for_one_kernel():
    for operator in OPERATORS:
        for variant in inside.cuda_kernels(operator).variants():
            assert VARIANTS[variant.label] == variant


def test_kernels_are_few():
    # Nearly all are compiled for every architecture: one per element width, layout and cluster, no more.
    assert 4 * len(OPERATORS) <= len(VARIANTS) <= 350


# One variant of each kernel, for elements of 4 bytes, stands for other widths and blocks; but `partition`
# loads elements of 2 bytes in another way.
EXAMPLES = {}
for each in VARIANTS.values():
    if each.parameters[:1] in ((), (4,)) and each.name not in {known.name for known in EXAMPLES.values()}:
        EXAMPLES[each.label] = each
EXAMPLES["dmlops_top_k_partition_2_64_16"] = VARIANTS["dmlops_top_k_partition_2_64_16"]


def check_on(variant, ptx, architectures):
    """Check that a kernel's code assembles, and how much of it there is for memory."""
    check_shared_memory(variant, ptx)
    for arch in architectures:
        kernel = compiler.make_kernel(variant, capability_of(arch))
        code, spilled = assemble(ptx, arch, compiler.max_registers(kernel))
        assert code.startswith(ELF_MAGIC)
        assert variant.label.encode() in code
        pair = next((pair for name, pair in MOST_SPILLED.items() if variant.label.startswith(name)), (0, 0))
        assert spilled <= pair[capability_of(arch) < (9, 0)], f"{variant.label} spills {spilled} on {arch}"


def check_waits(variant, ptx):
    """Check that a kernel that may begin early waits before it touches memory."""
    body = ptx[ptx.index(".entry") :]
    waits = body.find("griddepcontrol.wait")
    assert (waits >= 0) == variant.name.startswith(MAY_BEGIN_EARLY)
    # Parameters of rows, which no launch of a plan writes, may be read early.
    unless = r"(?!\.nc)" if variant.name == "sample_listed" else ""
    access = re.search(rf"\b(ld|st|red|atom)\.(relaxed\.gpu\.)?global{unless}", body)
    assert waits < access.start()


# Kernels that plans put in lists of launches, not only at their beginning.
MAY_BEGIN_EARLY = (
    "top_k",
    "nonzero_mask",
    "nonzero_count",
    "nonzero_scan",
    "nonzero_expand",
    "sample_",
    "gather_check",
)


SLOW = "dmlops_top_k_block", "dmlops_top_k_finish", "dmlops_top_k_partition_4", "dmlops_top_k_columns"
# The ordinary run assembles kernels of each operator that compile quickly.
ORDINARY = tuple(
    f"dmlops_{name}"
    for name in (
        "write_table",
        "diagonal_rows",
        "gather_unaligned",
        "nonzero_mask_transposed",
        "top_k_rounds",
    )
)


@pytest.mark.parametrize(
    "variant",
    [
        each if label.startswith(ORDINARY) else nightly(each) if label.startswith(SLOW) else exhaustive(each)
        for label, each in EXAMPLES.items()
    ],
    ids=EXAMPLES,
)
def test_assembles(variant):
    ptx = ptx_of(variant, (9, 0))
    check_waits(variant, ptx)
    check_on(variant, ptx, ["sm_90"])
    if variant.is_for("sm_75"):
        check_on(variant, ptx_of(variant, (7, 5)), ["sm_75"])


OF_CAPABILITY = {(7, 5): ("sm_75", "sm_80"), (9, 0): ("sm_90", "sm_100", "sm_120")}


# Code differs between 7.5 and 9.0: 7.5 has no `redux`, and 9.0 leaves registers for more loads.
OTHERS = [
    pytest.param(variant, capability, architectures, id=f"{label}-{architectures[0]}")
    for label, variant in VARIANTS.items()
    for capability, architectures in OF_CAPABILITY.items()
    if variant.is_for(architectures[0]) and (COMPILE_ALL or capability < (9, 0) or label not in EXAMPLES)
]


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("variant", "capability", "architectures"), OTHERS if COMPILE_ALL else random.Random(4).sample(OTHERS, 30)
)
def test_assembles_for_other_architectures(variant, capability, architectures):
    ptx = ptx_of(variant, capability)
    if capability >= (9, 0):
        check_waits(variant, ptx)
    check_on(variant, ptx, architectures)


@pytest.mark.parametrize("alignment", [8, 32])
def test_dynamic_shared_memory_of_another_alignment_than_toolkits_give(alignment):
    """A kernel that counts on more would be wrong where a toolkit gives less; none is made of it."""
    numba = compiler.cuda

    @numba.jit
    def kernel(number):
        numba.shared.array(0, np.uint32, alignment)[0] = number

    with pytest.raises(RuntimeError, match=f"^stray: .* 16 bytes, not {alignment}$"):
        compiler.compile_ptx(kernel, "stray", (9, 0))


def test_kernels_that_begin_early_wait():
    """Of what a plan puts on a stream, all but the first may begin early."""
    plans = [*(planned(make()) for make in PROBLEMS.values()), planned(PROBLEMS["gather"](), call="check")]
    early = {launch.name for plan in plans for launch in plan.asked if launch.is_early}
    assert early
    assert all(name.startswith(MAY_BEGIN_EARLY) for name in early)


@pytest.mark.nightly
def test_ptx_for_architectures_to_come():
    """A driver compiles it, and must know how many registers a thread may have."""
    variant = VARIANTS["dmlops_top_k_histogram_1_8_1"]
    ptx = compiler.compile_variant(variant, "compute_100").decode()
    _, limited = linked(ptx, "sm_120")
    _, free = linked(ptx.replace(".maxnreg", "//"), "sm_120")
    used = [int(re.search(r"Used (\d+) registers", log)[1]) for log in (limited, free)]
    assert used[0] <= compiler.max_registers(compiler.make_kernel(variant, (10, 0))) < used[1]


@pytest.mark.nightly
@pytest.mark.parametrize("label", ["dmlops_top_k_columns_1_4", "dmlops_sample_unfiltered_4_1"])
def test_older_architectures_have_code_of_their_own(label):
    """Functions of a kernel are compiled anew for architectures without some instructions, in any order."""
    variant = VARIANTS[label]
    found = {}
    for capability, has_redux in (((9, 0), True), ((7, 5), False), ((9, 0), True)):
        kernel = compiler.make_kernel(variant, capability)
        ptx = compiler.compile_ptx(kernel, variant.label, capability)
        assert ("redux.sync" in ptx) == has_redux
        assert ("griddepcontrol.wait" in ptx) == has_redux
        assert found.setdefault(capability, ptx) == ptx


@pytest.mark.nightly
@pytest.mark.parametrize(("capability", "served"), [((8, 0), ((8, 6), (8, 9))), ((10, 0), ((12, 0),))])
def test_architectures_that_share_ptx(capability, served):
    """The code for an architecture is the code that Numba makes for that architecture itself."""
    variant = VARIANTS["dmlops_top_k_rounds_1_4_16"]

    def without_target(ptx):
        return re.sub(r"\.target.*", "", ptx)

    shared = without_target(ptx_of(variant, capability))
    for other in served:
        assert compiler.ptx_capability(other) == capability
        assert without_target(ptx_of(variant, other)) == shared


def test_architectures_with_ptx_of_their_own_and_others():
    """The first device of each kind has PTX of its own; newer ones that no toolkit knows take the last."""
    for capability in ((7, 5), (8, 0), (9, 0), (10, 0)):
        assert compiler.ptx_capability(capability) == capability
    assert compiler.ptx_capability((99, 0)) == (10, 0)


def test_ptx_is_shared(monkeypatch):
    compiled = []
    compile_ptx = compiler.compile_ptx

    def counted(kernel, name, capability):
        compiled.append(capability)
        return compile_ptx(kernel, name, capability)

    monkeypatch.setattr(compiler, "compile_ptx", counted)
    compiler._ptx_and_limit.cache_clear()
    variant = VARIANTS["dmlops_top_k_offsets"]
    codes = [compiler.compile_variant(variant, arch) for arch in ("sm_80", "sm_86", "sm_75", "sm_89")]
    assert compiled == [(8, 0), (7, 5)]
    assert len({*codes}) == len(codes)


def test_what_a_cubin_is_known_by(tmp_path, monkeypatch):
    """The kernel, the architecture, each compiler's version and the sources are in the key."""
    names = ["numba", "numba-cuda", "llvmlite", "cuda-core", "nvidia-nvvm", "nvidia-nvjitlink"]
    names += ["nvidia-cuda-nvcc-cu12", "nvidia-nvjitlink-cu12"]  # NVVM and nvJitLink of CUDA 12
    installed = dict.fromkeys(names, "1.0")
    monkeypatch.setattr(compilers, "installed", lambda: installed)
    variant, other = VARIANTS["dmlops_top_k_offsets"], VARIANTS["dmlops_top_k_clear"]
    seen = [cuda.key(*each).path for each in ((variant, "sm_90"), (other, "sm_90"), (variant, "sm_80"))]
    for name in names:
        installed[name] = "1.1"
        seen.append(cuda.key(variant, "sm_90").path)
    (tmp_path / "__init__.py").touch()
    monkeypatch.setattr(inside.cuda_package, "__file__", str(tmp_path / "__init__.py"))
    seen.append(cuda.key(variant, "sm_90").path)
    assert len(set(seen)) == len(seen)
