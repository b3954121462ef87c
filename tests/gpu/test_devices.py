"""Devices: a second one works, and those that are not there are refused."""

import pytest

import dmlops
from dmlops import DeviceMismatchError
from tests.compiled import DESCRIPTORS, cpu_answer, make_inputs
from tests.gpu.bound import Bound
from tests.gpu.devices import n_devices
from tests.scripts import run_script


@pytest.mark.two_gpus
class TestSecondDevice:
    @pytest.mark.parametrize("name", DESCRIPTORS)
    def test_execute(self, name, torch):
        bound = Bound(torch, DESCRIPTORS[name], "cuda:1")
        inputs = make_inputs(bound.descriptor, 3)
        bound.feed(inputs)
        torch.cuda.synchronize(1)
        bound.execute()
        bound.check(cpu_answer(bound.descriptor, inputs))
        assert torch.cuda.current_device() == 0

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
    script = "from tests.gpu.devices import n_devices; print(n_devices())"
    assert run_script(script, CUDA_VISIBLE_DEVICES="0") == "1\n"
    assert run_script(script, CUDA_VISIBLE_DEVICES="") == "0\n"


def test_device_that_is_not_there():
    for index in (n_devices(), 99):
        with pytest.raises(dmlops.UnsupportedFeatureError, match=rf"^TopK1.device: got cuda:{index}, but"):
            dmlops.compile(DESCRIPTORS["top_k-rows"], device=f"cuda:{index}")


def test_support_is_asked_of_devices_that_exist():
    assert dmlops.check_feature_support(0, 1, device="cuda") is True
    assert dmlops.check_feature_support(1, [0x5000, 0x6500], device="cuda:0") == 0x5000
    for index in (n_devices(), 99):
        text = rf"^check_feature_support.device: got cuda:{index}, but"
        with pytest.raises(dmlops.UnsupportedFeatureError, match=text):
            dmlops.check_feature_support(0, 1, device=f"cuda:{index}")
