"""The entries of the lists of defects."""

import tomllib
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
# Stored kernels belong to the sources of their package: a defect in there needs a store of its own.
KERNEL_PACKAGES = ("kernels_cpu", "kernels_cuda")


@dataclass(frozen=True)
class Defect:
    """One place of one file, and what a careless hand would have written there."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    equivalent: str = ""
    """Why no test can see it: the answers, errors and accesses are provably the same."""

    @property
    def package(self):
        """Return the folder that the report counts it under."""
        first, second, *_ = Path(self.file).parts
        return f"{first}/{second}" if (ROOT / first / second).is_dir() else first

    @property
    def needs_gpu(self):
        """Tell whether only tests on a GPU can see it."""
        return any(test.startswith("tests/gpu") for test in self.tests)

    def problem(self):
        """Return what is wrong with the entry itself; an empty text if nothing is."""
        path = ROOT / self.file
        if not path.is_file():
            return f"{self.name}: there is no {self.file}"
        if self.old == self.new:
            return f"{self.name}: `new` is the same as `old`"
        count = path.read_text(encoding="utf-8").count(self.old)
        if count != 1:
            return f"{self.name}: `old` stands {count} times in {self.file}, and must stand there once"
        if not self.tests and not self.equivalent:
            return f"{self.name}: names no test, and no reason why none can see it"
        missing = [test for test in self.tests if not _exists(test)]
        return f"{self.name}: there is no {missing[0]}" if missing else ""

    def apply(self, root):
        """Put the defect into a copy of the project."""
        path = root / self.file
        path.write_text(path.read_text(encoding="utf-8").replace(self.old, self.new), encoding="utf-8")


def _exists(test):
    """Tell whether a test's file and function are there; `test` may name parameters too."""
    file, *parts = test.split("[")[0].split("::")
    path = ROOT / file
    return path.is_file() and (not parts or f"def {parts[-1]}(" in path.read_text(encoding="utf-8"))


def load():
    """Return all defects of all lists, in the order of the files."""
    return [
        Defect(**{**entry, "tests": tuple(entry.get("tests", ()))})
        for path in sorted(FOLDER.glob("*.toml"))
        for entry in tomllib.loads(path.read_text(encoding="utf-8")).get("defect", ())
    ]
