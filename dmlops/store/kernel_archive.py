"""Archives of compiled kernels: one per target in a wheel, and one per kernel in the cache directory.

An archive begins with its format, the SHA-256 and the size of the header, and the header: lines with the
device, the target, the digest of the sources and the compilers, the sizes of the blocks, and where in a block
each kernel is, with its SHA-256. Blocks follow, compressed in wheels. Equal kernels give an equal file, byte
for byte.
"""

import errno
import hashlib
import itertools
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

FORMAT = b"dmlops kernels 2\n"
SUFFIX = ".kernels"
"""The suffix of archives in a wheel."""

_DIGEST_BYTES = hashlib.sha256().digest_size
_SIZE_BYTES = 4
_HEADER_AT = len(FORMAT) + _DIGEST_BYTES + _SIZE_BYTES
# Of a file or a block: all kernels of a target have a few megabytes.
_MOST_BYTES = 1 << 26
_NO_WAIT = getattr(os, "O_NONBLOCK", 0)


class ArchiveError(Exception):
    """An archive or one of its kernels must not be used; the text says why, and names the file."""


class Origin(NamedTuple):
    """The target of an archive's kernels, and what they were made from."""

    device: str
    """``"cpu"`` or ``"cuda"``."""
    target: str
    """What runs the kernels, for example ``"sm_90"`` or ``"x86-64-v3"``."""
    sources: str
    """Digest of the sources of the kernels (`kernel_store.source_digest`)."""
    compilers: str
    """Names and versions of what compiled them."""


class _Block(NamedTuple):
    """Where a block begins, the bytes that are stored there, and those that they hold."""

    begin: int
    stored: int
    size: int
    is_compressed: bool


class _Place(NamedTuple):
    """The offset of a kernel in its block, its size, and its SHA-256."""

    block: int
    begin: int
    size: int
    digest: str


def write(path: Path, origin: Origin, kernels: Mapping[str, bytes]) -> None:
    """Write the archive of a target for a wheel: the code of each kernel by its label, compressed."""
    path.write_bytes(packed(origin, kernels, is_compressed=True))


def packed(origin: Origin, kernels: Mapping[str, bytes], *, is_compressed: bool = False) -> bytes:
    """Return the content of an archive: the code of each kernel by its label."""
    blocks: dict[str, bytearray] = {}
    places = []
    for label, code in sorted(kernels.items()):
        family = _family_of(label)
        block = blocks.setdefault(family, bytearray())
        digest = hashlib.sha256(code).hexdigest()
        places.append(f"{label} {[*blocks].index(family)} {len(block)} {len(code)} {digest}")
        block += code
    stored = [bytes(block) for block in blocks.values()]
    if is_compressed:
        import lzma  # noqa: PLC0415 - for wheels only

        stored = [lzma.compress(block) for block in stored]
    sizes = [
        f"{len(kept)} {len(block)} {int(is_compressed)}"
        for kept, block in zip(stored, blocks.values(), strict=True)
    ]
    header = "\n".join([*origin, str(len(sizes)), *sizes, *places]).encode()
    checked = len(header).to_bytes(_SIZE_BYTES, "little") + header
    return b"".join((FORMAT, hashlib.sha256(checked).digest(), checked, *stored))


def _family_of(label: str) -> str:
    """Return the name of a kernel without its numbers and types.

    Kernels of a family are much alike: compressed together, they take half the space.

    Examples
    --------
    >>> _family_of("dmlops_top_k_block_4_256"), _family_of("nonzero_mark_pi64_i64_pu8")
    ('dmlops_top_k_block', 'nonzero_mark')
    """
    words = itertools.takewhile(lambda word: not any(map(str.isdigit, word)), label.split("_"))
    return "_".join(words) or label


class Archive:
    """An archive, read into memory: a fork cannot disturb its reading, and the file may be replaced.

    `distrust` returns why a file with a certain status is not read, or "". A file that cannot be read, or is
    damaged, is an ArchiveError; if there is none, it is a FileNotFoundError.
    """

    origin: Origin
    labels: frozenset[str]
    """The kernels that it holds."""

    def __init__(self, path: Path, distrust: Callable[[os.stat_result], str] = lambda status: "") -> None:
        self._path = path
        with _refusing(path):
            self._content = _read_file(path, distrust)
            end = _HEADER_AT + int.from_bytes(self._content[_HEADER_AT - _SIZE_BYTES : _HEADER_AT], "little")
            checked = self._content[_HEADER_AT - _SIZE_BYTES : end]
            if self._content[: _HEADER_AT - _SIZE_BYTES] != FORMAT + hashlib.sha256(checked).digest():
                message = "its header does not have the SHA-256 that stands before it"
                raise ValueError(message)
            lines = checked[_SIZE_BYTES:].decode().split("\n")
            self.origin = Origin(*lines[:4])
            n_blocks = int(lines[4])
            self._blocks = []
            for line in lines[5 : 5 + n_blocks]:
                stored, size, is_compressed = map(int, line.split())
                self._blocks.append(_Block(end, stored, size, bool(is_compressed)))
                end += stored
            if end != len(self._content):
                message = f"it has {len(self._content)} bytes, and its header tells of {end}"
                raise ValueError(message)
            self._places = {}
            for line in lines[5 + n_blocks :]:
                label, block, begin, size_of_code, digest = line.split(" ")
                self._places[label] = _Place(int(block), int(begin), int(size_of_code), digest)
        self.labels = frozenset(self._places)
        # Kernels of a family are often needed one after the other.
        self._last_block = (-1, b"")

    @property
    def digest(self) -> str:
        """SHA-256 of all labels and their code.

        It stands for what runs: an edit of a comment changes the sources and with it the file, but not this.
        """
        lines = "".join(f"{label} {place.digest}\n" for label, place in sorted(self._places.items()))
        return hashlib.sha256(lines.encode()).hexdigest()

    def read(self, label: str) -> bytes:
        """Return the code of one of the kernels that `labels` names; raise ArchiveError if it is damaged."""
        with _refusing(self._path):
            place = self._places[label]
            if self._last_block[0] != place.block:
                self._last_block = (place.block, self._read_block(self._blocks[place.block]))
            code = self._last_block[1][place.begin : place.begin + place.size]
            if hashlib.sha256(code).hexdigest() != place.digest:
                message = f"{label} does not have the SHA-256 of the header"
                raise ValueError(message)
        return code

    def _read_block(self, block: _Block) -> bytes:
        stored = self._content[block.begin : block.begin + block.stored]
        if not block.is_compressed:
            return stored
        import lzma  # noqa: PLC0415 - for wheels only

        # A few bytes can be expanded to terabytes.
        return lzma.LZMADecompressor().decompress(stored, max_length=min(block.size, _MOST_BYTES))


def _read_file(path: Path, distrust: Callable[[os.stat_result], str]) -> bytes:
    """Return the content of a file, unless it is a pipe, a device, too large, or not to be trusted."""
    # A pipe in its place would otherwise wait for whoever writes to it.
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | _NO_WAIT)) as file:
        status = os.fstat(file.fileno())
        reason = "" if stat.S_ISREG(status.st_mode) else "it is not a file"
        if status.st_size > _MOST_BYTES:
            reason = reason or f"it has {status.st_size} bytes, and so is damaged"
        if reason := reason or distrust(status):
            raise OSError(reason)
        return file.read(status.st_size)


@contextmanager
def _refusing(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):  # the archive may well be sound
            raise
        message = f"{path} cannot be read ({error.strerror or error})"
        raise ArchiveError(message) from error
    except Exception as error:  # a flipped bit makes a decompressor raise nearly anything
        message = f"{path} is damaged ({error})"
        raise ArchiveError(message) from error
