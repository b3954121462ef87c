"""Archives of compiled kernels: they are read as they were written, are reproducible, and refuse damage."""

import json
import os
import zipfile

import pytest

from dmlops.store.kernel_archive import Archive, ArchiveError, write

KERNELS = {
    "top_k_1_p32": b"top" * 1000,
    "top_k_2_p32": b"other" * 1000,
    "gather_2": os.urandom(1000),
    "empty": b"",
}
ABOUT = {"device": "cuda", "target": "sm_90", "sources": "1234", "compilers": "numba 1, llvmlite 2"}


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "sm_90.zip"
    write(path, **ABOUT, kernels=KERNELS)
    return path


def test_what_is_written_is_read(path):
    archive = Archive(path)
    assert {name: getattr(archive, name) for name in ABOUT} == ABOUT
    assert archive.labels == set(KERNELS)
    assert {label: archive.read(label) for label in archive.labels} == KERNELS
    with zipfile.ZipFile(path) as file:  # nobody but the owner writes to what an unpacking program makes
        assert {each.external_attr >> 16 for each in file.infolist()} == {0o100644}


def test_equal_kernels_give_equal_files(path, tmp_path):
    again = tmp_path / "again.zip"
    write(again, **ABOUT, kernels=dict(reversed(KERNELS.items())))
    os.utime(again, (1, 1))
    assert again.read_bytes() == path.read_bytes()


def test_the_digest_is_that_of_the_kernels(path, tmp_path):
    other = tmp_path / "other.zip"

    def digest(kernels, **about):
        write(other, **{**ABOUT, **about}, kernels=kernels)
        return Archive(other).digest

    known = Archive(path).digest
    assert digest(KERNELS, sources="5678", compilers="numba 2") == known
    changes = ({"gather_2": b"other"}, {"one_more": b""}, {"top_k_1_p32": KERNELS["top_k_2_p32"]})
    kinds = [{**KERNELS, **change} for change in changes]
    kinds += [{"renamed" if label == "empty" else label: code for label, code in KERNELS.items()}]
    assert len({known, *map(digest, kinds)}) == 1 + len(kinds)


def test_an_open_archive_does_not_need_its_file(path):
    archive = Archive(path)
    path.write_bytes(b"replaced")
    assert archive.read("top_k_1_p32") == KERNELS["top_k_1_p32"]


@pytest.mark.parametrize(
    "manifest",
    [None, b"", b"\xff", b"[]", b'{"device": "cuda"}', json.dumps({**ABOUT, "kernels": 3}).encode()],
    ids=["absent", "empty", "not_text", "list", "incomplete", "kernels"],
)
def test_a_damaged_manifest_is_refused(manifest, tmp_path):
    path = tmp_path / "sm_90.zip"
    with zipfile.ZipFile(path, "w") as file:
        if manifest is not None:
            file.writestr("manifest.json", manifest)
    with pytest.raises(ArchiveError, match="is damaged"):
        Archive(path)


def test_the_code_of_another_kernel_is_refused(path):
    with zipfile.ZipFile(path) as file:
        entries = {name: file.read(name) for name in file.namelist()}
    entries["gather"] = entries["top_k"]
    with zipfile.ZipFile(path, "w") as file:
        for name, content in entries.items():
            file.writestr(name, content)
    archive = Archive(path)
    assert archive.read("top_k_1_p32") == KERNELS["top_k_1_p32"]
    with pytest.raises(ArchiveError, match="gather_2 does not have the SHA-256"):
        archive.read("gather_2")


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["manifest.json", "kernel"])
def test_an_entry_that_expands_to_much_more_is_refused(name, tmp_path):
    path = tmp_path / "sm_90.zip"
    places = {"kernel_1": (0, 10, "")}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as file:
        if name != "manifest.json":
            file.writestr("manifest.json", json.dumps({**ABOUT, "kernels": places}))
        with file.open(name, "w") as entry:
            for _ in range(100):
                entry.write(bytes(1 << 20))
    assert path.stat().st_size < 1 << 20
    with pytest.raises(ArchiveError, match=f"{name} has more than"):
        Archive(path).read("kernel_1")


def test_no_flipped_bit_changes_a_kernel(path):
    """Whatever byte is damaged, the archive says so or gives the right code."""
    content = path.read_bytes()
    for i in range(len(content)):
        path.write_bytes(content[:i] + bytes([content[i] ^ (1 << i % 8)]) + content[i + 1 :])
        try:
            archive = Archive(path)
            codes = {label: archive.read(label) for label in archive.labels}
        except ArchiveError:
            continue
        assert codes == KERNELS, i
