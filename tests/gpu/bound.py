"""A compiled operator on a GPU, together with its device arrays."""

import dmlops
from dmlops import FeatureLevel
from tests.compiled import make_inputs, make_outputs


class Bound:
    """A descriptor compiled for a GPU, with device arrays of its own, on torch."""

    def __init__(self, torch, descriptor, device="cuda:0"):
        self.torch = torch
        self.descriptor = descriptor
        self.operator = dmlops.compile(descriptor, device=device, feature_level=FeatureLevel.EXTENDED)
        self.inputs = {
            name: torch.from_numpy(array).to(device) for name, array in make_inputs(descriptor, 1).items()
        }
        self.outputs = {
            name: torch.from_numpy(array).to(device) for name, array in make_outputs(descriptor).items()
        }
        self.workspace = torch.full((self.operator.workspace_size,), 0xA5, dtype=torch.uint8, device=device)

    def execute(self, stream=None):
        """Execute on the arrays of this object."""
        self.operator.execute(self.inputs | self.outputs, workspace=self.workspace, stream=stream)

    def feed(self, inputs):
        """Put new data in the input arrays, on the current stream."""
        for name, array in inputs.items():
            self.inputs[name].copy_(self.torch.from_numpy(array))

    def check(self, expected):
        """Compare every bit of the outputs that is defined with the CPU's."""
        expected = dict(expected)
        actual = {name: tensor.cpu().numpy() for name, tensor in self.outputs.items()}
        if "output_count_tensor" in expected:
            count = expected["output_count_tensor"].item()
            for outputs in (actual, expected):
                coordinates = outputs["output_coordinates_tensor"]
                outputs["output_coordinates_tensor"] = coordinates[..., :count, :]
        for name, array in expected.items():
            assert actual[name].tobytes() == array.tobytes(), name
