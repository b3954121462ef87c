"""Commands on a GPU write the files that they write on the CPU."""

import numpy as np
import pytest

LINES = {
    "top-k x.npy -k 4": "npz",
    "top-k x.npy -k 2 --axis 0 --smallest": "npz",
    "nonzero x.npy": "npz",
    "gather x.npy i.npy": "npy",
    "gather x.npy b.npy --batch-dims 1": "npy",
    "diagonal x.npy --begin -1 --end 3 --value 9": "npy",
}


@pytest.mark.parametrize("line", LINES)
def test_the_same_files_as_on_the_cpu(command, tmp_path, line):
    rng = np.random.default_rng(3)
    np.save("x.npy", rng.integers(-3, 4, (40, 30, 5)).astype(np.float32))
    np.save("i.npy", rng.integers(-40, 40, (90, 1)))
    np.save("b.npy", rng.integers(-30, 30, (40, 6, 1)))
    written = []
    for device, label in (("cpu", "CPU"), ("cuda", "GPU")):
        file = f"{device}.{LINES[line]}"
        code, printed, error = command(*line.split(), "--device", device, "-o", file)
        assert (code, error) == (0, "")
        assert f"({label})" in printed
        written.append((tmp_path / file).read_bytes())
    assert written[0] == written[1]
