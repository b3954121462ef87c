"""Arrays that are larger than the memory budget: the same bytes in blocks, and no file before all is done."""

import io
import os
import re
import signal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from dmlops.cli import blocks, outputs
from tests.command_line import assert_refused, end_of, fuzz, start_python, wait_for
from tests.marks import exhaustive

RNG = np.random.default_rng(7)
few = settings(fuzz, max_examples=max(fuzz.max_examples // 5, 1))
SHAPES = st.lists(st.integers(0, 7), min_size=1, max_size=4)
LIMITS = st.sampled_from(["1", "40B", "200", "1KiB", "0.5KB"])


def both(command, line, limit, suffix):
    """Check that a command writes the same bytes in one piece and in blocks; return what it printed."""
    for name, options in (("whole", ()), ("parts", ("--memory", limit))):
        code, printed, error = command(*line, *options, "--device", "cpu", "-o", f"{name}{suffix}")
        assert (code, error) == (0, "")
    with open(f"whole{suffix}", "rb") as whole, open(f"parts{suffix}", "rb") as parts:
        assert whole.read() == parts.read()
    return printed


def saved(shape, dtype, order):
    """Save an array in which many elements are equal, and many are zero."""
    x = RNG.integers(-2, 3, shape).astype(dtype)
    np.save("x.npy", np.asarray(x, order=order))
    return x


@few
@given(SHAPES, st.sampled_from(["<f4", ">i2", "?", "u8"]), st.sampled_from("CF"), LIMITS, st.data())
def test_top_k_in_blocks(command, shape, dtype, order, limit, data):
    saved(shape, dtype, order)
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    k = data.draw(st.integers(0, shape[axis]))
    line = ["top-k", "x.npy", "-k", k, "--axis", axis, "--index-dtype", "uint32"]
    both(command, line + ["--smallest"] * data.draw(st.booleans()), limit, ".npz")


@few
@given(
    SHAPES, st.sampled_from(["<f4", ">i2", "?"]), LIMITS, st.none() | st.integers(0, 90), st.integers(-9, 9)
)
def test_nonzero_in_blocks(command, shape, dtype, limit, size, fill):
    saved(shape, dtype, "C")
    options = [] if size is None else ["--size", size, "--fill-value", fill]
    both(command, ["nonzero", "x.npy", *options], limit, ".npz")


@few
@given(SHAPES, LIMITS, st.data())
def test_gather_in_blocks(command, shape, limit, data):
    shape = [max(size, 1) for size in shape]
    saved(shape, "<f4", "C")
    batch = data.draw(st.integers(0, len(shape) - 1))
    width = data.draw(st.integers(0, len(shape) - batch))
    outer = [*shape[:batch], *data.draw(st.lists(st.integers(0, 5), max_size=2))]
    bounds = np.array(shape[batch : batch + width], np.int64)
    np.save("i.npy", RNG.integers(-bounds, bounds, (*outer, width)))
    both(command, ["gather", "x.npy", "i.npy", "--batch-dims", batch], limit, ".npy")


@few
@given(st.lists(st.integers(0, 7), min_size=2, max_size=4), LIMITS, *[st.integers(-9, 9)] * 2, st.booleans())
def test_diagonal_in_blocks(command, shape, limit, begin, end, is_new):
    saved(shape, "<f4", "C")
    source = ["--shape", ",".join(map(str, shape)), "--dtype", "int16"] if is_new else ["x.npy"]
    both(command, ["diagonal", *source, "--begin", begin, "--end", end, "--value", 5], limit, ".npy")


@pytest.mark.parametrize("source", [["x.npy"], ["--shape", "2,9,12"]])
def test_blocks_of_columns_have_the_right_diagonals(command, source):
    np.save("x.npy", np.zeros((2, 9, 12), np.float32))
    # A row of 12 elements is cut.
    both(command, ["diagonal", *source, "--begin", -2, "--end", 3, "--value", 5], "32", ".npy")


@pytest.mark.quick
def test_blocks_are_told_and_are_as_large_as_they_may_be(command):
    np.save("x.npy", np.arange(8000, dtype=np.int64).reshape(100, 80))
    printed = both(command, ["top-k", "x.npy", "-k", 10], "16000", ".npz")
    # 640 bytes of a row, and 160 of its results.
    assert "(CPU, 5 blocks, " in printed
    assert "values int64 (100, 10)\n" in printed
    code, printed, _ = command("top-k", "x.npy", "-k", 10, "--memory", "80kB")
    assert code == 1
    # Without a file, they are collected in memory.
    assert "(CPU, 50 blocks, " in command("top-k", "x.npy", "-k", 10, "--memory", "1.6KB")[1]


@pytest.mark.parametrize(("is_terminal", "kind"), [(True, "xterm"), (True, "dumb"), (False, "xterm")])
def test_a_terminal_has_a_progress_bar(command, monkeypatch, is_terminal, kind):
    monkeypatch.setenv("TERM", kind)
    screen = Console(file=io.StringIO(), force_terminal=is_terminal, width=100)
    monkeypatch.setattr("dmlops.cli.console.err", screen)
    np.save("x.npy", np.eye(50))
    assert command("nonzero", "x.npy", "--memory", "8KiB", "-o", "y.npz")[0] == 0
    shown = screen.file.getvalue()
    if is_terminal and kind != "dumb":
        assert re.search("(?s)/9.*counting.*/9.*listing", shown)
    else:
        assert shown == ""


def test_sizes_of_memory():
    sizes = ("1", "7B", "2KB", "2KiB", "1.5 MiB", "3GB", "1TiB")
    assert [blocks.n_bytes(text) for text in sizes] == [1, 7, 2000, 2048, 3 << 19, 3 * 10**9, 1 << 40]


def test_a_count_that_the_type_of_indices_does_not_hold(command, monkeypatch):
    # A file with a hole, in which all bytes are zero.
    np.lib.format.open_memmap("x.npy", mode="w+", dtype=np.bool_, shape=(2, 1 << 31))
    outcome = command("nonzero", "x.npy", "--index-dtype", "uint32", "--device", "cpu")
    assert_refused(outcome, "nonzero: --index-dtype uint32: the count reaches 4,294,967,296; int64 holds it")


def test_a_tuple_out_of_range_in_a_later_block(command):
    np.save("x.npy", np.arange(5))
    indices = np.zeros((300, 1), np.int64)
    indices[297] = 5
    np.save("i.npy", indices)
    outcome = command("gather", "x.npy", "i.npy", "--memory", 1600, "-o", "y.npy")
    at = "of the tuples from position (200,) on, whose positions count from there: "
    assert_refused(outcome, f"gather: {at}gather_nd.indices: got tuple (5,) at position (97,)")
    assert sorted(os.listdir()) == ["i.npy", "x.npy"]


def test_batch_dimensions_that_differ_are_refused_in_blocks_too(command):
    np.save("x.npy", np.zeros((6, 4)))
    np.save("i.npy", np.zeros((4, 1), np.int64))
    outcome = command("gather", "x.npy", "i.npy", "--batch-dims", 1, "--memory", 64)
    assert_refused(outcome, "gather: gather_nd.indices")


def test_systems_without_fallocate_write_zeros(monkeypatch, tmp_path):
    monkeypatch.delattr(os, "posix_fallocate", raising=False)
    monkeypatch.setattr(outputs, "ZEROS", 1000)
    array = np.lib.format.open_memmap(tmp_path / "x.npy", mode="w+", dtype=np.int32, shape=(900,))
    outputs._reserve(array)
    status = (tmp_path / "x.npy").stat()
    assert status.st_size == array.offset + 3600
    assert status.st_blocks * 512 >= 3600
    array[:] = 7
    array.flush()
    assert np.load(tmp_path / "x.npy").tolist() == [7] * 900


# Reports that it can be ended after some of the blocks.
SLOW = """
import sys, time
import dmlops
fill, calls = dmlops.diagonal_matrix, []

def slow(*arguments, **options):
    calls.append(1)
    if len(calls) == 3:
        open("working", "w").close()
        time.sleep(100)
    return fill(*arguments, **options)

dmlops.diagonal_matrix = slow
sys.argv = ["dmlops", "diagonal", "x.npy", "--memory", "4KiB", "-o", "y.npy"]
from dmlops.cli import main
sys.exit(main())
"""


@pytest.mark.skipif(os.name == "nt", reason="signals are others there")
@pytest.mark.parametrize("name", ["SIGTERM", exhaustive("SIGINT"), "SIGKILL"])
def test_a_command_that_is_killed_leaves_the_old_file(tmp_path, name):
    np.save(tmp_path / "x.npy", np.zeros((100, 100)))
    (tmp_path / "y.npy").write_text("old")
    process = start_python("-c", SLOW, folder=tmp_path)
    wait_for((tmp_path / "working").exists)
    (partial,) = tmp_path.glob(".dmlops-*.partial")
    # Its space is taken already, so that no later write to mapped memory can fail.
    assert (partial / "output.npy").stat().st_blocks * 512 >= 80_000
    number = getattr(signal, name)
    process.send_signal(number)
    expected = (130, "dmlops: interrupted\n") if name == "SIGINT" else (-number, "")
    assert end_of(process) == expected
    assert (tmp_path / "y.npy").read_text() == "old"
    left = {"working", "x.npy", "y.npy"} | ({partial.name} if name == "SIGKILL" else set())
    assert {path.name for path in tmp_path.iterdir()} == left


@pytest.mark.parametrize("sizes", ["99999999,99999999", "9999999999999,9999999999", f"{10**19},4"])
def test_results_that_no_disk_holds(command, sizes):
    outcome = command("diagonal", "--shape", sizes, "-o", "y.npy")
    assert_refused(outcome, sizes.replace(",", ", "))
    assert not os.path.exists("y.npy")
