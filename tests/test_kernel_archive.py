"""Archives of compiled kernels: they are read as they were written, are reproducible, and refuse damage."""

import hashlib
import lzma
import os

import pytest

from tests.inside import Archive, ArchiveError, Origin, packed, write

KERNELS = {
    "top_k_1_p32": b"top" * 1000,
    "top_k_2_p32": b"other" * 1000,
    "gather_2": os.urandom(1000),
    "empty": b"",
}
ORIGIN = Origin("cuda", "sm_90", "1234", "numba 1, llvmlite 2")


@pytest.fixture(params=[True, False], ids=["compressed", "plain"])
def path(tmp_path, request):
    """Return an archive as wheels have it, or as the cache directory does."""
    path = tmp_path / "sm_90.kernels"
    path.write_bytes(packed(ORIGIN, KERNELS, is_compressed=request.param))
    return path


def test_archives_are_read_as_they_were_written(path):
    archive = Archive(path)
    assert archive.origin == ORIGIN
    assert archive.labels == set(KERNELS)
    assert {label: archive.read(label) for label in archive.labels} == KERNELS


def test_equal_kernels_give_equal_files(tmp_path):
    paths = [tmp_path / name for name in ("one", "two")]
    write(paths[0], ORIGIN, KERNELS)
    write(paths[1], ORIGIN, dict(reversed(KERNELS.items())))
    assert paths[0].read_bytes() == paths[1].read_bytes()
    # Similar kernels are compressed together.
    assert paths[0].stat().st_size < 3000 < len(packed(ORIGIN, KERNELS))


def test_the_digest_is_that_of_the_kernels(path, tmp_path):
    other = tmp_path / "other"

    def digest(kernels, **about):
        write(other, ORIGIN._replace(**about), kernels)
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


def with_header(header, blocks=b""):
    """Return an archive with any header, and the digest that it must have."""
    begin = packed(ORIGIN, {}).partition(b"\n")[0] + b"\n"
    checked = len(header).to_bytes(4, "little") + header
    return begin + hashlib.sha256(checked).digest() + checked + blocks


ABOUT = "\n".join(ORIGIN)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"dmlops",
        b"PK" * 1000,
        with_header(b""),
        with_header(b"\xff"),
        with_header(b"cuda\nsm_90"),
        with_header(f"{ABOUT}\nmany".encode()),
        with_header(f"{ABOUT}\n1\n3 4".encode()),
        with_header(f"{ABOUT}\n0\nkernel 0 0 x digest".encode()),
        with_header(f"{ABOUT}\n1\n4 4 0".encode(), b"cod"),
    ],
)
def test_a_damaged_header_is_refused(content, tmp_path):
    path = tmp_path / "sm_90.kernels"
    path.write_bytes(content)
    with pytest.raises(ArchiveError, match=r"sm_90\.kernels is damaged"):
        Archive(path)


def test_the_code_of_another_kernel_is_refused(tmp_path):
    path = tmp_path / "sm_90.kernels"
    content = packed(ORIGIN, {"one": b"1" * 100, "two": b"2" * 100})
    path.write_bytes(content.replace(b"2" * 100, b"1" * 100))
    archive = Archive(path)
    assert archive.read("one") == b"1" * 100
    with pytest.raises(ArchiveError, match="two does not have the SHA-256"):
        archive.read("two")


@pytest.mark.exhaustive
def test_a_block_that_expands_to_much_more_is_refused(tmp_path):
    path = tmp_path / "sm_90.kernels"
    block = lzma.compress(bytes(100 << 20))
    digest = hashlib.sha256(bytes(100 << 20)).hexdigest()
    header = f"{ABOUT}\n1\n{len(block)} {100 << 20} 1\nkernel_1 0 0 {100 << 20} {digest}"
    path.write_bytes(with_header(header.encode(), block))
    assert path.stat().st_size < 1 << 20
    with pytest.raises(ArchiveError, match="kernel_1 does not have the SHA-256"):
        Archive(path).read("kernel_1")


def test_no_flipped_bit_changes_a_kernel(path):
    """Whatever byte is damaged, the archive says so or gives the right code."""
    content = path.read_bytes()
    for i in range(0, len(content), 1 + len(content) // 4000):
        path.write_bytes(content[:i] + bytes([content[i] ^ (1 << i % 8)]) + content[i + 1 :])
        try:
            archive = Archive(path)
            codes = {label: archive.read(label) for label in archive.labels}
        except ArchiveError:
            continue
        assert codes == KERNELS, i
