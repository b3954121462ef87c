"""Files of zarr and safetensors as inputs and outputs, in one piece and in blocks."""

import json
import os
import shlex
import stat
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from dmlops.cli import outputs
from tests.command_line import assert_refused
from tests.scripts import blocks, run_page, run_script

zarr = pytest.importorskip("zarr")
pytest.importorskip("safetensors")

from safetensors import safe_open  # noqa: E402
from safetensors.numpy import load_file, save_file  # noqa: E402

X = np.array([[3, 1, 3, 2], [0, 5, 5, 5]], np.int16)
LIMIT = ("--memory", "40")


def run(command, *arguments):
    """Run a command that has to end well; return what it printed."""
    code, printed, error = command(*arguments, "--device", "cpu")
    assert (code, error) == (0, "")
    return printed


@pytest.mark.parametrize("options", [(), LIMIT], ids=["whole", "blocks"])
@pytest.mark.parametrize("version", [2, 3])
def test_a_zarr_array(command, version, options):
    zarr.create_array("x.zarr", data=X.astype(">i2"), chunks=(1, 3), zarr_format=version)
    run(command, "top-k", "x.zarr", "-k", 2, *options, "-o", "best.npz")
    with np.load("best.npz") as best:
        assert best["values"].tolist() == [[3, 3], [5, 5]]
        assert best["indices"].tolist() == [[0, 2], [1, 2]]
        assert best["values"].dtype == np.int16
    run(command, "nonzero", "x.zarr", *options, "-o", "there.zarr")
    there = zarr.open_group("there.zarr", mode="r")
    assert np.array_equal(there["coordinates"][...], np.argwhere(X))
    assert there["count"][()] == 7
    # The results are inputs: of the group, the coordinates.
    np.save("x.npy", X)
    run(command, "gather", "x.npy", "there.zarr", *options, "-o", "y.zarr")
    assert zarr.open("y.zarr", mode="r")[...].tolist() == X[X != 0].tolist()
    assert sorted(os.listdir()) == ["best.npz", "there.zarr", "x.npy", "x.zarr", "y.zarr"]


def test_an_array_of_a_zarr_group(command):
    group = zarr.create_group("g.zarr")
    group.create_array("a", data=X)
    group.create_group("inner").create_array("b", data=-X)
    assert "nonzero of g.zarr:inner/b: 7 of 8" in run(command, "nonzero", "g.zarr:inner/b")
    refusals = {
        "g.zarr": "g.zarr: it has the arrays a, inner/b; name one, as g.zarr:a",
        "g.zarr:inner": "g.zarr: it has no array inner; it has the arrays a, inner/b",
    }
    for name, told in refusals.items():
        assert_refused(command("nonzero", name), told)
    zarr.create_array("one.zarr", data=X)
    assert_refused(command("nonzero", "one.zarr:a"), "one.zarr: it is one array, without names")


def test_a_zarr_store_that_is_there_stays(command):
    np.save("x.npy", X)
    zarr.create_array("y.zarr", data=X)
    outcome = command("diagonal", "x.npy", "-o", "y.zarr")
    assert_refused(outcome, "-o y.zarr: it exists already, and may hold other arrays; name a new one")
    assert zarr.open("y.zarr", mode="r")[...].tolist() == X.tolist()
    assert_refused(command("diagonal", "x.npy", "-o", "no/y.zarr"), "-o no/y.zarr: there is no folder")


@pytest.mark.parametrize("content", ["", "[1]", '{"zarr_format": 3, "node_type": "array"}'])
def test_a_damaged_zarr_store_is_refused(command, tmp_path, content):
    (tmp_path / "x.zarr").mkdir()
    assert_refused(command("nonzero", "x.zarr"), "x.zarr: Is a directory")
    (tmp_path / "x.zarr" / "zarr.json").write_text(content)
    assert_refused(command("nonzero", "x.zarr"), "x.zarr: a zarr store that cannot be read: ")


def test_a_damaged_chunk_is_refused(command, tmp_path):
    zarr.create_array("x.zarr", data=np.arange(100), chunks=(10,))
    (tmp_path / "x.zarr" / "c" / "3").write_bytes(b"no chunk")
    assert_refused(command("nonzero", "x.zarr", "-o", "y.npz"), "x.zarr: it cannot be read: ")
    assert os.listdir() == ["x.zarr"]


@pytest.mark.parametrize("options", [(), LIMIT], ids=["whole", "blocks"])
def test_a_tensor_of_a_safetensors_file(command, options):
    save_file({"a": X, "b": -X, "c": np.array(5), "d": X[:0]}, "x.safetensors")
    run(command, "top-k", "x.safetensors:b", "-k", 1, *options, "-o", "best.safetensors")
    assert {name: array.tolist() for name, array in load_file("best.safetensors").items()} == {
        "values": [[-1], [0]],
        "indices": [[1], [0]],
    }
    for name, count in (("c", "1 of 1"), ("d", "0 of 0")):
        assert f"x.safetensors:{name}: {count}" in run(command, "nonzero", f"x.safetensors:{name}", *options)
    outcome = command("nonzero", "x.safetensors")
    assert_refused(outcome, "x.safetensors: it has the arrays a, b, c, d; name one, as x.safetensors:a")
    # The indices of this result are in range as tuples of its values.
    run(command, "gather", "best.safetensors", "best.safetensors", "--mode", "clip", "-o", "y.npy")
    assert np.load("y.npy").tolist() == [[0], [-1]]


def test_an_array_in_fortran_order_is_written_in_order(tmp_path):
    # The library writes the memory of an array as it lies there.
    x = np.asfortranarray(np.arange(12.0).reshape(3, 4))
    outputs.write(tmp_path / "y.safetensors", {"x": x, "count": np.array(3)})
    written = load_file(tmp_path / "y.safetensors")
    assert written["x"].tolist() == x.tolist()
    assert written["count"].shape == ()


def test_bfloat16_has_a_file_after_all(command):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    run(command, "diagonal", "--shape", "2,3", "--dtype", "bfloat16", "--value", 1.5, "-o", "x.safetensors")
    with safe_open("x.safetensors", framework="np") as file:
        x = file.get_tensor("output")
    assert x.dtype == ml_dtypes.bfloat16
    assert x.astype(float).tolist() == [[1.5, 0, 0], [0, 1.5, 0]]
    run(command, "top-k", "x.safetensors", "-k", 1, "-o", "best.safetensors")
    with safe_open("best.safetensors", framework="np") as file:
        assert file.get_tensor("values").astype(float).tolist() == [[1.5], [1.5]]
    for suffix in ("npz", "zarr"):
        outcome = command("top-k", "x.safetensors", "-k", 1, "-o", f"best.{suffix}")
        assert_refused(outcome, f"-o best.{suffix}: it cannot hold bfloat16; .safetensors can")


def test_zarr_has_no_dates_without_a_unit(command):
    outcome = command("diagonal", "--shape", "3,3", "--dtype", "M8", "-o", "y.zarr")
    assert_refused(outcome, "-o y.zarr: zarr cannot hold datetime64 without a unit; .npy can")
    run(command, "diagonal", "--shape", "3,3", "--dtype", "M8[s]", "-o", "y.zarr")


def test_bfloat16_is_read_where_nothing_else_has_imported_it(command, tmp_path):
    pytest.importorskip("ml_dtypes")
    run(command, "diagonal", "--shape", "2,3", "--dtype", "bfloat16", "-o", "x.safetensors")
    script = """
        import os, sys
        os.chdir({folder!r})
        sys.modules.update({modules!r})
        sys.argv = ["dmlops", "nonzero", "x.safetensors", "--device", "cpu"]
        sys.stderr = sys.stdout
        from dmlops.cli import main
        main()
    """
    printed = run_script(script.format(folder=str(tmp_path), modules={}))
    assert "nonzero of x.safetensors:output: 2 of 6 elements" in printed
    printed = run_script(script.format(folder=str(tmp_path), modules={"ml_dtypes": None}))
    assert printed == "dmlops: x.safetensors: output has a type that NumPy lacks: BF16\n"


def test_types_that_a_format_lacks_are_refused(command, tmp_path):
    header = json.dumps({"a": {"dtype": "F8_E4M3", "shape": [2], "data_offsets": [0, 2]}}).encode()
    (tmp_path / "f8.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(2))
    assert_refused(
        command("nonzero", "f8.safetensors"), "f8.safetensors: a has a type that NumPy lacks: F8_E4M3"
    )
    # This is found before the work.
    np.save("c.npy", np.ones((2, 2), np.complex128))
    outcome = command("diagonal", "c.npy", "-o", "y.safetensors")
    assert_refused(outcome, '-o y.safetensors: Unknown dtype "complex128"')


@pytest.mark.skipif(sys.platform == "win32", reason="there are no limits of files")
@pytest.mark.parametrize("suffix", ["npy", "npz", "zarr", "safetensors"])
@pytest.mark.parametrize("options", [(), ("--memory", "16KiB")], ids=["whole", "blocks"])
def test_a_full_disk_is_told_in_one_line(command, suffix, options):
    resource = import_module("resource")
    np.save("x.npy", np.random.default_rng(0).random((100, 100)))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, limits[1]))
    try:
        outcome = command("diagonal", "x.npy", *options, "-o", f"y.{suffix}")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert_refused(outcome, f"-o y.{suffix}: ", "File too large")
    assert os.listdir() == ["x.npy"]


@pytest.mark.parametrize(
    "content", [b"", b"hello" * 9, b"\x02" + bytes(7) + b"[]", b"\x08" + bytes(7) + b'{"a":{}}']
)
def test_a_damaged_safetensors_file_is_refused(command, tmp_path, content):
    (tmp_path / "x.safetensors").write_bytes(content)
    assert_refused(command("nonzero", "x.safetensors"), "x.safetensors: a damaged .safetensors file: ")


@pytest.mark.parametrize("name", ["zarr", "safetensors"])
def test_a_library_that_is_missing_is_named(command, monkeypatch, name):
    np.save("x.npy", X)
    run(command, "diagonal", "x.npy", "-o", f"y.{name}")
    monkeypatch.setitem(sys.modules, name, None)
    remedy = f'this needs {name}: pip install "dmlops[files]"'
    assert_refused(command("diagonal", f"y.{name}"), f"y.{name}: {remedy}")
    assert_refused(command("diagonal", "x.npy", "-o", f"z.{name}"), f"z.{name}: {remedy}")


def test_what_cannot_be_mapped_is_not_gathered_from_beyond_the_memory(command):
    zarr.create_array("x.zarr", data=np.arange(1000))
    np.save("i.npy", np.array([[5], [900]]))
    run(command, "gather", "x.zarr", "i.npy", "-o", "y.npy")
    assert np.load("y.npy").tolist() == [5, 900]
    outcome = command("gather", "x.zarr", "i.npy", "--memory", "1KiB")
    assert_refused(
        outcome, "gather: x.zarr takes 8.0 kB, more than --memory 1KiB", "save the array as an .npy"
    )


@pytest.mark.parametrize("suffix", ["zarr", "safetensors"])
def test_a_row_or_batch_that_cannot_be_mapped_is_within_the_memory(command, suffix):
    x = np.arange(2000, dtype=np.int64).reshape(2, 1000)
    outputs.write(Path(f"x.{suffix}"), {"a": x})
    np.save("i.npy", np.array([[[5]], [[900]]]))
    name = "x.zarr" if suffix == "zarr" else "x.safetensors:a"
    refused = {
        ("top-k", f"x.{suffix}", "-k", 1): "top-k: a row of {} with its results takes 8.0 kB",
        ("gather", f"x.{suffix}", "i.npy", "--batch-dims", 1): "gather: a batch of {} with its results takes",
    }
    for line, told in refused.items():
        outcome = command(*line, "--memory", "1KiB", "-o", "y.npz")
        assert_refused(outcome, told.format(name), ", more than --memory 1KiB, and cannot be read in parts")
        run(command, *line, "--memory", "10KiB", "-o", "y.npz")
    # A file that can be mapped has no such limit.
    np.save("x.npy", x)
    run(command, "top-k", "x.npy", "-k", 1, "--memory", "1KiB", "-o", "y.npz")
    with np.load("y.npz") as best:
        assert best["indices"].tolist() == [[999], [999]]


@pytest.mark.skipif(os.name == "nt", reason="permissions are others there")
@pytest.mark.parametrize("suffix", ["npy", "npz", "safetensors"])
def test_a_new_file_has_the_usual_permissions(tmp_path, suffix):
    previous = os.umask(0o027)
    try:
        outputs.write(tmp_path / f"y.{suffix}", {"a": X})
    finally:
        os.umask(previous)
    assert stat.S_IMODE((tmp_path / f"y.{suffix}").stat().st_mode) == 0o640


def test_the_examples_of_the_page(command):
    run_page("docs/cli.md")
    n_run = 0
    for language, code in blocks("docs/cli.md"):
        for line in code.splitlines() if language == "bash" else ():
            name, *arguments = shlex.split(line, comments=True)
            if name == "dmlops" and "|" not in arguments and "demo" not in arguments:
                run(command, *arguments)
                n_run += 1
    assert n_run >= 15
    mask, ones = np.load("mask.npy"), np.load("ones.npy")
    assert ones.all()
    assert ones.size == mask.sum()
    scores = np.load("scores.npy")
    with np.load("best.npz") as best:
        assert best["values"].tolist() == (-np.sort(-scores, axis=1)[:, :10]).tolist()
