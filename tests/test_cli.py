"""The command line as a user runs it: arguments in; text, files and an exit code out."""

import json
import re
import signal
import zipfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from rich.status import Status

import dmlops
from tests.command_line import assert_refused, replace_gpus
from tests.inside import cpu_kernels, cuda_kernels, demo, placement, warmup
from tests.scripts import run_script

OPERATOR_NAMES = ("diagonal_matrix", "gather_nd", "nonzero_coordinates", "sample", "top_k")


@pytest.fixture
def no_gpu(monkeypatch):
    """Pretend that there is no GPU."""
    replace_gpus(monkeypatch, lambda: 1 / 0)


@pytest.mark.quick
def test_help_is_light():
    script = """
        import sys
        from tests.scripts import run_main
        assert run_main("dmlops", "--help") == 0
        print([name for name in ("numba", "llvmlite", "cuda") if name in sys.modules])
    """
    printed = run_script(script)
    assert printed.rstrip().endswith("[]")
    for name in ("demo", "info", "warmup", "top-k", "nonzero", "gather", "sample", "diagonal"):
        assert name in printed


COMMAND_LINES = ("", "demo", "info", "warmup", "cache", "top-k", "nonzero", "gather", "sample", "diagonal")


@pytest.mark.quick
@pytest.mark.parametrize("line", COMMAND_LINES)
@pytest.mark.parametrize("columns", [80, 120])
def test_help_fits_the_terminal(command, monkeypatch, line, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    code, printed, _ = command(*line.split(), "--help")
    assert code == 0
    assert max(map(len, printed.splitlines())) <= columns
    assert not re.search(r"None|<str>|list\[", printed)
    assert re.search(r"--help +-h .*Show this message", printed)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("dmlops ga", {"gather"}),
        ("dmlops top-k x.npy --sm", {"--smallest"}),
        ("dmlops gather x.npy i.npy --mode ", {"raise", "clip", "fill"}),
        ("dmlops top-k x.npy --index-dtype u", {"uint32", "uint64"}),
        # The shell completes the names of files, because there is nothing else.
        ("dmlops top-k x", {""}),
    ],
)
def test_completion(command, monkeypatch, words, expected):
    monkeypatch.setenv("_DMLOPS_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split(" ")) - 1))
    _, printed, _ = command()
    assert set(printed.removesuffix("\n").split("\n")) == expected


@pytest.mark.quick
def test_version(command):
    assert command("--version")[:2] == (0, f"dmlops {dmlops.__version__}\n")


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_without_the_extra(missing):
    script = f"""
        import io, sys
        sys.modules["{missing}"] = None
        sys.stderr = io.StringIO()
        from tests.scripts import run_main
        print(run_main("dmlops"))
        print(sys.stderr.getvalue(), end="")
    """
    code, line = run_script(script).splitlines()
    assert code == "1"
    assert 'pip install "dmlops[cli]"' in line


@pytest.fixture
def brief_demo(monkeypatch):
    """Let the demo time three calls of each step, and no more."""
    monkeypatch.setattr(demo, "ENOUGH_SECONDS", 0)


def test_demo(command, no_gpu, brief_demo):
    code, printed, error = command("demo")
    assert (code, error) == (0, "")
    assert "All 5 answers equal NumPy's, bit for bit." in printed
    told = re.findall(r"^  \w[\w -]+? {2,}(\w+) +[\d.]+ [mu]?s +[\d.]+ [mu]?s +yes", printed, re.MULTILINE)
    assert told == ["nonzero_coordinates", "gather_nd", "top_k", "diagonal_matrix", "top_k"]
    assert "nonzero_coordinates finds 275 stars and galaxies" in printed
    assert "\n    row 357, column 547       row 462, column 574 " in printed
    with np.load(Path(demo.__file__).parents[1] / "data" / "hubble_deep_field.npz") as archive:
        surroundings = archive["photo"][357 - 12 : 357 + 12, 547 - 12 : 547 + 12]
    shades = 10 * (surroundings.reshape(12, 2, 24).mean(axis=1) / 256) ** 1.5
    for row in shades.astype(int):
        assert f"\n  {''.join(' .:-=+*#%@'[shade] for shade in row)}  " in printed
    assert "[" not in printed
    assert "\n     bread: loaf, dough, sandwich, wheat\n" in printed
    assert printed.endswith("No GPU took part: no NVIDIA driver answers on this machine.\n")


@pytest.mark.parametrize(("seconds", "n_calls"), [(0.25, 3), (0.125, 4), (2**-12, 100)])
def test_times_include_the_wait(monkeypatch, seconds, n_calls):
    now, calls = [0.0], []

    class Late(placement.Host):
        def wait(self):
            now[0] += seconds

    monkeypatch.setattr(demo, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    assert demo._time(calls.append, Late(), [1]) == (seconds, None)
    assert len(calls) == n_calls


class Backwards(placement.Host):
    """A device whose answers are all wrong."""

    label = "GPU"

    def get(self, array):
        return np.flip(array)


@pytest.mark.exhaustive
def test_demo_fails_where_an_answer_differs(command, monkeypatch, brief_demo):
    diagonal_matrix, gather_nd = dmlops.diagonal_matrix, dmlops.gather_nd

    def one_bit(x, value):
        filled = diagonal_matrix(x, value=value)
        filled[filled == 0] = -0.0
        return filled

    # Zeros of another sign, and the right elements in another shape.
    monkeypatch.setattr(dmlops, "diagonal_matrix", one_bit)
    monkeypatch.setattr(dmlops, "gather_nd", lambda x, indices: gather_nd(x, indices).reshape(-1))
    monkeypatch.setattr(demo, "_places", lambda device: ([placement.Host(), Backwards()], ""))
    code, printed, error = command("demo")
    assert code == 1
    assert printed.count("NO") == 5
    assert error.startswith("dmlops: demo: 7 of these answers differ from NumPy's")
    assert "stars and galaxies" not in printed


@pytest.mark.quick
def test_info(command, no_gpu, monkeypatch, tmp_path):
    cache = str(tmp_path / ("a word " * 30).strip())  # no fact is broken into lines: some are to be copied
    monkeypatch.setenv("DMLOPS_CACHE_DIR", cache)
    code, printed, error = command("info")
    assert cache in printed
    assert (code, error) == (0, "")
    facts = ("numba", "cuda-core", "threads", "EXTENDED", "no NVIDIA driver", "Cache of compiled kernels")
    for fact in facts:
        assert fact in printed
    code, printed, error = command("info", "--json")
    assert (code, error) == (0, "")
    found = json.loads(printed)
    assert printed == json.dumps(found, indent=1) + "\n"
    assert found["Versions"]["dmlops"] == dmlops.__version__
    assert found["CUDA"] == {"devices": "none: no NVIDIA driver answers on this machine"}


@pytest.mark.parametrize("line", ["info", "demo", "top-k x.npy -k 1"])
def test_a_number_of_threads_that_is_none(command, monkeypatch, line):
    monkeypatch.setenv("DMLOPS_NUM_THREADS", "many")
    dmlops.set_num_threads(None)
    np.save("x.npy", X)
    assert_refused(command(*line.split()), "DMLOPS_NUM_THREADS: got 'many', but it must be a whole number")


@pytest.mark.exhaustive
def test_warmup(command, no_gpu, monkeypatch, tmp_path):
    kernels = [*cpu_kernels("diagonal_matrix").all_kernels()][:2]
    for operator in OPERATOR_NAMES:
        few = kernels if operator == "diagonal_matrix" else []
        monkeypatch.setattr(cpu_kernels(operator), "all_kernels", lambda few=few: iter(few))
    monkeypatch.setenv("DMLOPS_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(Status, "update", lambda status, text: told.append(text))
    monkeypatch.setattr(warmup, "TELL_AFTER_S", 0)
    told = []
    code, printed, error = command("warmup", "--jobs", 2)
    assert code == 0
    assert len(told) == 10  # two kernels, native calls, and plans for GPUs
    for number, text in enumerate(told, 1):
        assert re.fullmatch(rf"CPU: {number} of 10 kernels, about \d+ s left", text)
    # Standard error is no terminal here.
    assert error.splitlines() == ["CPU: 10 kernels to find or to compile, on 2 cores", *told]
    assert re.match(r"CPU: 10 kernels in .*\nNo GPU", printed)
    _, printed, _ = command("cache")
    assert re.search(r" +10 kernels, ", printed)
    assert "older versions" not in printed
    if hasattr(signal, "pthread_sigmask"):
        assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


@pytest.mark.exhaustive
def test_warmup_for_a_gpu_that_is_not_there(command, no_gpu, monkeypatch, tmp_path):
    pytest.importorskip("cuda.core")
    all_variants = cuda_kernels("gather_nd").variants()
    variants = [variant for variant in all_variants if variant.label == "dmlops_gather_clear"]
    for operator in OPERATOR_NAMES:
        monkeypatch.setattr(cuda_kernels(operator), "variants", lambda: iter(variants))
    monkeypatch.setenv("DMLOPS_CACHE_DIR", str(tmp_path))
    options = ("--arch", "sm_90", "--arch", "sm_75", "--jobs", 1)
    code, printed, error = command("warmup", "--device", "cuda", *options)
    assert code == 0
    names = re.findall("^(sm_..): 1 kernel to find or to compile, on 1 core$", error, re.MULTILINE)
    assert names == ["sm_75", "sm_90"]
    assert re.fullmatch(r"sm_75: 1 kernel in .*\nsm_90: 1 kernel in .*\n", printed)
    _, printed, _ = command("cache")
    assert re.findall(r"(sm_..) +1 kernel, ", printed) == ["sm_75", "sm_90"]


@pytest.mark.parametrize("name", ["sm_10", "sm_999", "sm_70", "90"])
def test_warmup_refuses_what_the_toolkit_does_not_compile_for(command, monkeypatch, name):
    nvrtc = pytest.importorskip("cuda.bindings.nvrtc")
    outcome = command("warmup", "--arch", "sm_90", "--arch", name)
    assert_refused(outcome, f"--arch {name}: ", "it must be one of sm_75, ", " sm_90, ")
    monkeypatch.setattr(nvrtc, "nvrtcGetSupportedArchs", lambda: 1 / 0)
    outcome = command("warmup", "--arch", name, "--arch", "sm_90")
    assert_refused(outcome, f"--arch {name}: the compilers for GPUs are not installed: pip install ")


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("DMLOPS_CACHE", "0", "DMLOPS_CACHE=0 turns the cache off"),
        ("DMLOPS_CACHE_DIR", "file/folder", "file/folder cannot be written: Not a directory"),
        ("DMLOPS_CACHE_DIR", "/proc/nope", "/proc/nope cannot be written: "),
    ],
)
def test_a_cache_that_keeps_nothing_is_told(command, no_gpu, monkeypatch, tmp_path, name, value, reason):
    (tmp_path / "file").touch()
    monkeypatch.setenv(name, value)
    monkeypatch.setattr(warmup, "_compile", lambda *arguments: pytest.fail("kernels were compiled in vain"))
    outcome = command("warmup", "--device", "cpu")
    assert_refused(outcome, "warmup: nothing that is compiled would be kept: ", reason)
    code, printed, _ = command("info")
    assert code == 0
    assert re.search(rf"new kernels +not kept: .*{re.escape(reason)}", printed)


X = np.array([[3, 1, 3, 2], [0, 5, 5, 5]], np.int32)


def test_a_summary_is_printed_without_output(command):
    np.save("x[red].npy", X)
    code, printed, _ = command("top-k", "x[red].npy", "-k", 2, "--device", "cpu")
    assert code == 0
    assert "top-k of x[red].npy: the 2 largest along axis -1 (CPU)\n" in printed
    assert "values int32 (2, 2)\n[[3 3]\n [5 5]]\n" in printed
    printed = command("diagonal", "x[red].npy", "-o", ":smile:[red].npy")[1]
    assert printed.endswith("written to :smile:[red].npy\n")
    np.save("dates.npy", np.array([5, 2**40]).view("M8"))  # without a unit, for which NumPy has no words
    printed = command("top-k", "dates.npy", "-k", 1, "--device", "cpu")[1]
    assert "values datetime64 (1,)\n[1099511627776]\n" in printed


BAD = {
    "top-k x.npy": (2, "Missing option '-k'"),
    "top-k x.npy -k 9": (1, "top-k: top_k.k: got 9, but axis 1 of x has 4 elements; k must be in [0, 4]"),
    "top-k x.npy -k 1 --index-dtype float32": (2, "'float32' is not one of 'uint32', "),
    "top-k x.npy -k 1 -o best.npy": (1, "-o best.npy: the name of the file must end with .npz"),
    "nonzero x.npy -o there.npy": (1, "-o there.npy: the name of the file must end with .npz"),
    "top-k missing.npy -k 1": (1, "missing.npy: No such file or directory"),
    "top-k text.npy -k 1": (1, "text.npy: not an .npy file"),
    "top-k short.npy -k 1": (1, "short.npy: a damaged .npy file: "),
    "top-k archive.npz -k 1": (1, "archive.npz: it has the arrays a, b; name one, as archive.npz:a"),
    "top-k archive.npz:c -k 1": (1, "archive.npz: it has no array c; it has the arrays a, b"),
    "top-k objects.npz:b -k 1": (1, "objects.npz: it has no array b; it has the array a"),
    "top-k empty.npz -k 1": (1, "empty.npz: it has no arrays"),
    "top-k notes.npz:readme -k 1": (1, "notes.npz: it has no array readme; it has no arrays"),
    "top-k x.npy:values -k 1": (1, "x.npy:values: No such file or directory"),
    "top-k text.npz -k 1": (1, "text.npz: not an .npz file; numpy.savez makes one"),
    "top-k texts.npz -k 1": (1, "texts.npz:a: not an array in NumPy's format; numpy.savez writes arrays"),
    "top-k flipped.npz:b -k 1": (1, "flipped.npz:b: a damaged .npy file: Bad CRC-32"),
    "diagonal x.npy -o y.safetensors": (1, "the name of the file must end with .npy or .npz"),
    "top-k folder -k 1": (1, "folder: Is a directory"),
    "top-k complex.npy -k 1": (1, "complex128"),
    "top-k objects.npy -k 1": (1, "objects.npy: it holds Python objects, which are never unpickled"),
    "top-k objects.npz -k 1": (1, "objects.npz:a: it holds Python objects, which are never unpickled"),
    "top-k x.npy -k 1 --device tpu": (2, "'tpu'"),
    "gather x.npy": (2, "Missing argument 'INDICES'"),
    "gather x.npy x.npy": (1, "gather: gather_nd.indices"),
    "gather x.npy far.npy -o y.npy": (1, "gather: gather_nd.indices: got tuple (5, 0) at position (0,), "),
    "gather x.npy far.npy --mode wrap": (2, "'wrap' is not one of 'raise', 'clip', 'fill'"),
    "gather - -": (1, "gather: standard input holds one array; name files for the others"),
    "top-k - -k 1 --lengths -": (1, "top-k: standard input holds one array; name files for the others"),
    "top-k x.npy -k 1 --lengths complex.npy": (1, "top-k: top_k.lengths"),
    "top-k x.npy -k 1 --max-length 3": (
        1,
        "top-k: top_k.max_length: got 3, but there are neither starts nor",
    ),
    "gather x.npy far.npy --along-axis 2": (1, "gather: --along-axis: got 2, but x.npy has 2 dimensions"),
    "gather x.npy cube.npy --along-axis 0": (
        1,
        "x.npy has 2 dimensions and cube.npy 3; both must have the same",
    ),
    "gather x.npy far.npy --along-axis 0 --batch-dims 1": (1, "leave out --batch-dims"),
    "diagonal x.npy --end nan": (2, "Invalid value for '--end': 'nan' is not a valid integer, inf or -inf"),
    "diagonal x.npy --value one": (1, "--value: 'one' is not a number"),
    "warmup --jobs 0": (2, "--jobs"),
    "warmup --arch sm_90 --device cpu": (1, "--arch is for GPUs"),
    "bogus": (2, "No such command 'bogus'"),
}


def header(text):
    """Return an .npy file with a header."""
    return b"\x93NUMPY\x02\x00" + (len(text) + 1).to_bytes(4, "little") + text.encode() + b"\n"


LONG = "9" * 6000
DAMAGED = {
    "shape.npy": header(f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({LONG},)}}"),
    "descr.npy": header(f"{{'descr': '<f{LONG}', 'fortran_order': False, 'shape': (3,)}}"),
    "keys.npy": header(f"{{'descr': '<f4', 'fortran_order': False, 'shape': (3,), '{LONG}': 3}}"),
    "text.npy": header(LONG),
    "sizes.npy": header(f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({'1, ' * 2000})}}"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_what_damaged_files_hold_is_cut(command, name):
    Path(name).write_bytes(DAMAGED[name])
    with zipfile.ZipFile("x.npz", "w") as archive:
        archive.writestr(f"{LONG}.npy", DAMAGED[name])
    for file in (name, "x.npz"):
        code, _, error = command("top-k", file, "-k", "1")
        assert code == 1
        assert f"{file}" in error
        assert "a damaged .npy file: " in error
        assert len(error) < 700


def test_long_names_and_arguments_are_cut(command):
    with zipfile.ZipFile("x.npz", "w") as archive:
        for i in range(3000):
            archive.writestr(f"{i}.npy", "")
    np.save("x.npy", X)
    np.save("fields.npy", np.zeros((2, 2), np.dtype([(f"field{i}", "f4") for i in range(300)])))
    for line, text in (
        (["top-k", "x.npz", "-k", "1"], "x.npz: it has the arrays 0, 1, 2"),
        (["top-k", "x.npz:none", "-k", "1"], "; it has the arrays 0, 1, 2"),
        (["top-k", "x.npy", "-k", LONG], "Invalid value for '-k': "),
        (["top-k", "x.npy", "-k", "1", "--axis", LONG[:4000]], "top_k.axis: got 99"),
        (["top-k", "fields.npy", "-k", "1"], "top_k.x: got [('field0', '<f4'), "),
        (["diagonal", "x.npy", "--end", LONG], " is not a valid integer, inf or -inf"),
        (["diagonal", "x.npy", "--value", LONG + "x"], " is not a number"),
        (["diagonal", "x.npy", "--value", LONG[:4000] + "e1"], " is beyond the range of float64"),
        (["info", "--explain", LONG], ": it must be ROWS,N,K,TYPE"),
    ):
        code, _, error = command(*line)
        assert code in (1, 2)
        assert text in error
        assert len(error) < 1100


@pytest.mark.parametrize("line", BAD)
def test_mistakes_are_told_in_one_line(command, no_gpu, monkeypatch, tmp_path, line):
    np.save("x.npy", X)
    np.save("far.npy", np.array([[5, 0]]))
    np.save("cube.npy", np.zeros((1, 1, 1), int))
    np.save("complex.npy", X + 1j)
    np.save("objects.npy", np.array([None, 1], dtype=object), allow_pickle=True)
    np.savez("objects.npz", a=np.array([None, 1], dtype=object))
    np.savez("archive.npz", a=X, b=X)
    np.savez("empty.npz")
    with zipfile.ZipFile("notes.npz", "w") as archive:
        archive.writestr("readme", "hello, this is text\n")
    with zipfile.ZipFile("texts.npz", "w") as archive:
        archive.writestr("a.npy", "hello, this is text\n")
    content = Path("archive.npz").read_bytes()
    (tmp_path / "flipped.npz").write_bytes(content.replace(X.tobytes(), (~X).tobytes()))
    (tmp_path / "text.npy").write_text("hello, this is text\n")
    (tmp_path / "text.npz").write_text("hello, this is text\n")
    (tmp_path / "short.npy").write_bytes((tmp_path / "x.npy").read_bytes()[:-3])
    (tmp_path / "folder").mkdir()
    before = sorted(tmp_path.iterdir())
    code, printed, error = command(*line.split())
    expected_code, text = BAD[line]
    assert code == expected_code
    assert printed == ""
    assert re.fullmatch(r"dmlops: .+\n", error)
    assert text in error
    assert sorted(tmp_path.iterdir()) == before


def test_sample(command, no_gpu, tmp_path):
    """Parameters are numbers, files, or arrays in files."""
    x = np.random.default_rng(0).standard_normal((6, 50)).astype("float32")
    seeds, shares = np.arange(6), np.linspace(0, 1, 6)
    np.save(tmp_path / "x.npy", x)
    np.savez(tmp_path / "given.npz", seeds=seeds, shares=shares)
    options = ["--seeds", f"{tmp_path}/given.npz:seeds", "--top-p", f"{tmp_path}/given.npz:shares"]
    options += ["--steps", "3", "--temperature", "0.5", "-k", "7", "-o", f"{tmp_path}/tokens.npy"]
    code, printed, _ = command("sample", f"{tmp_path}/x.npy", *options)
    assert code == 0
    assert "tokens int64 (6,)" in printed
    expected = dmlops.sample(x, seeds, steps=3, temperature=0.5, k=7, top_p=shares)
    assert np.array_equal(np.load(tmp_path / "tokens.npy"), expected)
    drawn = "sample", f"{tmp_path}/x.npy", "--seeds"
    assert_refused(command(*drawn, "warm"), "--seeds: 'warm' is not a number")
    assert_refused(command(*drawn, "1", "--min-p", "2"), "sample: sample.min_p: got 2")
