"""Arrays on several devices: mixed operands are refused, and a second device works."""

import numpy as np
import pytest

import dmlops
from dmlops import DeviceMismatchError, InvalidDescriptorError
from dmlops.devices import cuda_driver
from tests import reference
from tests.compiled import DESCRIPTORS, cpu_answer, make_inputs
from tests.data import sample
from tests.gpu.bound import Bound
from tests.scripts import run_script


class TestMixedLocations:
    def test_gather(self, gpu_library):
        x, indices = np.ones((3, 2)), np.zeros((1, 1), "int64")
        for first, second in ((x, gpu_library.from_numpy(indices)), (gpu_library.from_numpy(x), indices)):
            with pytest.raises(DeviceMismatchError, match=r"^gather_nd.indices: got an array on ") as error:
                dmlops.gather_nd(first, second)
            assert "cpu" in str(error.value)
            assert "cuda:0" in str(error.value)

    def test_host_output(self, gpu_library):
        x = gpu_library.from_numpy(np.ones((3, 2), "float32"))
        out = np.full((3, 2), 77, "float32")
        with pytest.raises(
            DeviceMismatchError, match=r"^diagonal_matrix.out: got an array on cpu, but .*cuda:0"
        ):
            dmlops.diagonal_matrix(x, out=out)
        assert (out == 77).all()

    def test_device_output(self, gpu_library):
        x = np.ones((3, 2), "float32")
        out = gpu_library.from_numpy(np.full((3, 2), 77, "float32"))
        with pytest.raises(
            DeviceMismatchError, match=r"^diagonal_matrix.out: got an array on cuda:0, but .*cpu"
        ):
            dmlops.diagonal_matrix(x, out=out)
        assert (gpu_library.to_numpy(out) == 77).all()

    def test_execute(self, torch):
        bound = Bound(torch, DESCRIPTORS["top_k-rows"])
        arrays = bound.inputs | bound.outputs
        for name, array in arrays.items():
            with pytest.raises(DeviceMismatchError, match=rf"^TopK1.{name}: got .* cpu, but .*cuda:0"):
                bound.operator.execute(arrays | {name: array.cpu()})
        with pytest.raises(DeviceMismatchError, match=r"^TopK1.workspace: got an array on cpu, but .*cuda:0"):
            bound.operator.execute(arrays, workspace=np.empty(2**24, np.uint8))

    def test_workspace(self, torch):
        bound = Bound(torch, DESCRIPTORS["top_k-long_row"])
        assert bound.operator.workspace_size > 0
        arrays = bound.inputs | bound.outputs
        with pytest.raises(InvalidDescriptorError, match=r"^TopK1.workspace: got .* bytes, but .*; at least"):
            bound.operator.execute(arrays, workspace=bound.workspace[:-1])
        # The size that is asked for includes what alignment takes.
        inputs = make_inputs(bound.descriptor, 4)
        bound.feed(inputs)
        bound.workspace = torch.empty(bound.operator.workspace_size + 7, dtype=torch.uint8, device="cuda")[7:]
        bound.execute()
        bound.check(cpu_answer(bound.descriptor, inputs))

    def test_overlap(self, torch):
        memory = torch.zeros((4, 4), device="cuda")
        with pytest.raises(InvalidDescriptorError, match=r"^diagonal_matrix.out: got an overlapping array"):
            dmlops.diagonal_matrix(memory[:2], out=memory[1:3])
        with pytest.raises(InvalidDescriptorError, match="strides of an output must not overlap"):
            dmlops.diagonal_matrix(memory, out=torch.zeros(4, device="cuda").expand(4, 4))
        assert not memory.any()


@pytest.mark.two_gpus
class TestSecondDevice:
    def test_functions(self, torch):
        x = sample("float32", (50, 3000), "second")
        device_x = torch.from_numpy(x).to("cuda:1")
        assert torch.cuda.current_device() == 0
        values, indices = dmlops.top_k(device_x, 40)
        coordinates, count = dmlops.nonzero_coordinates(device_x)
        picked = dmlops.gather_nd(device_x, torch.tensor([[49], [0]], device="cuda:1"))
        band = dmlops.diagonal_matrix(device_x, value=2)
        built = dmlops.diagonal_matrix(shape=(2, 2), dtype=torch.int8, like=device_x)
        for result in (values, indices, coordinates, count, picked, band, built):
            assert result.device == torch.device("cuda:1")
        assert torch.cuda.current_device() == 0
        expected = reference.top_k(x, 40)
        np.testing.assert_array_equal(values.cpu().numpy(), expected[0])
        np.testing.assert_array_equal(indices.cpu().numpy(), expected[1])
        np.testing.assert_array_equal(coordinates.cpu().numpy(), reference.nonzero_coordinates(x)[0])
        np.testing.assert_array_equal(picked.cpu().numpy(), x[[49, 0]])
        np.testing.assert_array_equal(band.cpu().numpy(), reference.diagonal_matrix(x, value=2))

    @pytest.mark.parametrize("name", DESCRIPTORS)
    def test_execute(self, name, torch):
        bound = Bound(torch, DESCRIPTORS[name], "cuda:1")
        inputs = make_inputs(bound.descriptor, 3)
        bound.feed(inputs)
        torch.cuda.synchronize(1)
        bound.execute()
        bound.check(cpu_answer(bound.descriptor, inputs))
        assert torch.cuda.current_device() == 0

    def test_cupy(self):
        cupy = pytest.importorskip("cupy")
        with cupy.cuda.Device(1):
            x = cupy.asarray(sample("float32", (5, 600), "cupy"))
        values, indices = dmlops.top_k(x, 9)
        assert values.device.id == indices.device.id == 1
        with cupy.cuda.Device(1):
            expected = reference.top_k(cupy.asnumpy(x), 9)
            np.testing.assert_array_equal(cupy.asnumpy(values), expected[0])
            np.testing.assert_array_equal(cupy.asnumpy(indices), expected[1])

    def test_arrays_on_two_devices(self, torch):
        x = torch.ones((3, 2), device="cuda:0")
        indices = torch.zeros((1, 1), dtype=torch.int64, device="cuda:1")
        with pytest.raises(DeviceMismatchError, match=r"^gather_nd.indices: .*cuda:1, but .*cuda:0"):
            dmlops.gather_nd(x, indices)
        with pytest.raises(DeviceMismatchError, match=r"^diagonal_matrix.out: .*cuda:1, but .*cuda:0"):
            dmlops.diagonal_matrix(x, out=torch.ones((3, 2), device="cuda:1"))

    def test_stream_of_another_device(self, torch):
        with torch.cuda.device(1):
            stream = torch.cuda.Stream()
        x = torch.ones((3, 2), device="cuda:0")
        for given in (stream, stream.cuda_stream):
            with pytest.raises(
                DeviceMismatchError, match=r"^diagonal_matrix.stream: got a stream of cuda:1, but .*cuda:0"
            ):
                dmlops.diagonal_matrix(x, stream=given)


def test_hidden_devices_are_not_counted():
    script = "from dmlops.devices import cuda_driver; print(cuda_driver.device_count())"
    assert run_script(script, CUDA_VISIBLE_DEVICES="0") == "1\n"
    assert run_script(script, CUDA_VISIBLE_DEVICES="") == "0\n"


def test_device_that_is_not_there():
    for index in (cuda_driver.device_count(), 99):
        with pytest.raises(dmlops.UnsupportedFeatureError, match=rf"^TopK1.device: got cuda:{index}, but"):
            dmlops.compile(DESCRIPTORS["top_k-rows"], device=f"cuda:{index}")


def test_support_is_asked_of_devices_that_exist():
    assert dmlops.check_feature_support(0, 1, device="cuda") is True
    assert dmlops.check_feature_support(1, [0x5000, 0x6500], device="cuda:0") == 0x5000
    for index in (cuda_driver.device_count(), 99):
        text = rf"^check_feature_support.device: got cuda:{index}, but"
        with pytest.raises(dmlops.UnsupportedFeatureError, match=text):
            dmlops.check_feature_support(0, 1, device=f"cuda:{index}")
