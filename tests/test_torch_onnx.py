"""Models that call dmlops, exported to ONNX's own operators, give the same answers in ONNX Runtime."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")
runtime = pytest.importorskip("onnxruntime")

import dmlops  # noqa: E402
from dmlops.integrations.torch.onnx import TRANSLATIONS  # noqa: E402
from tests.torch_calls import CALLS, integers, normal  # noqa: E402

# torch warns about itself and about onnxscript.
pytestmark = pytest.mark.filterwarnings("ignore")

# ONNX has no operators for some, and ONNX Runtime no int16.
SERVED = {name: call for name, call in CALLS.items() if name not in ("gather_nd_no_index", "like", "sample")}
SERVED = {name: call for name, call in SERVED.items() if "lengths" not in name} | {
    "bool": lambda x: dmlops.top_k(x > 0, 3),
    "ties": lambda x: dmlops.top_k(x.round(), 4, largest=False),
    "size": lambda x: dmlops.nonzero_coordinates(x > 0, size=3),
    "blocks": lambda x: (dmlops.gather_nd(x[None], integers(x, [[0], [1], [-1], [-2]]), mode="fill"),),
    "band": lambda x: (dmlops.diagonal_matrix(x, value=3, begin=-1, end=2),),
    "inverted": lambda x: (dmlops.diagonal_matrix(x, value=0.1, begin=2, end=-1),),
}


class Model(torch.nn.Module):
    def __init__(self, *calls):
        super().__init__()
        self.calls = calls

    def forward(self, x):
        return [part for call in self.calls for part in call(x)]


def export(model, x, **options):
    return torch.onnx.export(
        model, (x,), dynamo=True, custom_translation_table=TRANSLATIONS, verbose=False, **options
    )


def check(program, model, x):
    session = runtime.InferenceSession(program.model_proto.SerializeToString())
    results = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    for actual, expected in zip(results, model(x), strict=True):
        assert actual.dtype == expected.numpy().dtype
        np.testing.assert_array_equal(actual, expected)


def test_every_call():
    model, x = Model(*SERVED.values()), normal(3, 5, dtype=torch.float32)
    check(export(model, x), model, x)


def test_any_number_of_rows():
    model = Model(*(SERVED[name] for name in ("top_k", "nonzero", "nonzero_static", "blocks", "tril")))
    rows = [{0: torch.export.Dim("rows")}]
    program = export(model, normal(3, 5, dtype=torch.float32), dynamic_shapes=rows)
    for n in (2, 9):
        check(program, model, normal(n, 5, dtype=torch.float32))


@pytest.mark.parametrize("name", ["top_k_lengths", "gather_nd_no_index"])
def test_refused(name):
    with pytest.raises(torch.onnx.errors.OnnxExporterError) as raised:
        export(Model(CALLS[name]), normal(3, 5))
    error = raised.value
    while error.__cause__ is not None:
        error = error.__cause__
    assert "ONNX has no operator for it" in str(error)
