"""Archives of compiled kernels in a wheel: one zip file per target, in ``dmlops/kernels``.

An archive has one entry per family of kernels, and ``manifest.json``: the target, the sources and compilers,
and where in its family each kernel is, with its SHA-256. Equal kernels give an equal file, byte for byte.
"""

import errno
import hashlib
import io
import itertools
import json
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dmlops.store.kernel_cache import read_file

_MANIFEST = "manifest.json"
# The earliest time that a zip file can express.
_TIME = (1980, 1, 1, 0, 0, 0)
_UNIX = 3
# Of an entry; all kernels of a target have a few megabytes.
_MOST_BYTES = 1 << 26
_PIECE_BYTES = 1 << 12
_MODE = 0o100644


class ArchiveError(Exception):
    """An archive or one of its kernels must not be used; the text says why, and names the file."""


def write(
    path: Path, *, device: str, target: str, sources: str, compilers: str, kernels: Mapping[str, bytes]
) -> None:
    """Write an archive.

    Parameters
    ----------
    path : Path
        The file, which is named after the target; its folder must exist.
    device : str
        ``"cpu"`` or ``"cuda"``.
    target : str
        What runs the kernels, for example ``"sm_90"`` or ``"x86-64-v3"``.
    sources : str
        Digest of the sources of the kernels (`kernel_store.source_digest`).
    compilers : str
        Names and versions of what compiled them.
    kernels : mapping
        The code of each kernel by its label.
    """
    families: dict[str, bytearray] = {}
    places = {}
    for label in sorted(kernels):
        code, family = kernels[label], families.setdefault(_family_of(label), bytearray())
        places[label] = (len(family), len(code), hashlib.sha256(code).hexdigest())
        family += code
    manifest = {
        "device": device,
        "target": target,
        "sources": sources,
        "compilers": compilers,
        "kernels": places,
    }
    with zipfile.ZipFile(path, "w") as file:
        _add(file, _MANIFEST, (json.dumps(manifest) + "\n").encode())
        for name, family in families.items():
            _add(file, name, bytes(family))


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


def _add(file: zipfile.ZipFile, name: str, content: bytes) -> None:
    entry = zipfile.ZipInfo(name, _TIME)
    entry.create_system = _UNIX
    entry.external_attr = _MODE << 16
    # A quarter smaller than deflated.
    file.writestr(entry, content, zipfile.ZIP_LZMA)


class Archive:
    """An archive, read into memory: a fork cannot disturb its reading, and the file may be replaced.

    Parameters
    ----------
    path : Path
        The file.

    Attributes
    ----------
    device, target, sources, compilers : str
        What was given to `write`.
    labels : frozenset of str
        The kernels that it holds.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ArchiveError
        If it cannot be read, or is damaged.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with _refusing(path):
            self._file = zipfile.ZipFile(io.BytesIO(read_file(path)))
            manifest: dict[str, Any] = json.loads(self._member(_MANIFEST))
            self.device, self.target, self.sources, self.compilers = (
                str(manifest[name]) for name in ("device", "target", "sources", "compilers")
            )
            self._places: dict[str, tuple[int, int, str]] = {
                label: (int(begin), int(size), str(digest))
                for label, (begin, size, digest) in dict(manifest["kernels"]).items()
            }
            if not self.sources:
                message = "it does not say which sources it was made from"
                raise ValueError(message)
        self.labels = frozenset(self._places)
        # Kernels of a family are often needed one after the other.
        self._last_family = ("", b"")

    @property
    def digest(self) -> str:
        """SHA-256 of all labels and their code.

        It stands for what runs: an edit of a comment changes `sources` and with it the file, but not this.
        """
        lines = "".join(f"{label} {digest}\n" for label, (_, _, digest) in sorted(self._places.items()))
        return hashlib.sha256(lines.encode()).hexdigest()

    def read(self, label: str) -> bytes:
        """Return the code of one of the kernels that `labels` names.

        Raises
        ------
        ArchiveError
            If it is damaged.
        """
        with _refusing(self._path):
            begin, size, digest = self._places[label]
            code = self._family(_family_of(label))[begin : begin + size]
            if hashlib.sha256(code).hexdigest() != digest:
                message = f"{label} does not have the SHA-256 of the manifest"
                raise ValueError(message)
        return code

    def _family(self, name: str) -> bytes:
        last, content = self._last_family
        if last != name:
            content = self._member(name)
            self._last_family = (name, content)
        return content

    def _member(self, name: str) -> bytes:
        content = bytearray()
        with self._file.open(name) as member:
            # In pieces, because a few bytes can be expanded to terabytes.
            while piece := member.read(_PIECE_BYTES):
                content += piece
                if len(content) > _MOST_BYTES:
                    message = f"{name} has more than {_MOST_BYTES} bytes"
                    raise ValueError(message)
        return bytes(content)


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
    except Exception as error:  # a flipped bit makes zipfile raise nearly anything
        message = f"{path} is damaged ({error})"
        raise ArchiveError(message) from error
