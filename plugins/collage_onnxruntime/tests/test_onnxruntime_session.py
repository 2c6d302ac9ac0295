"""A script for ONNX Runtime runs on a bundle when one line of it is changed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

from collage_core import Bundle, Target, optimize, save

_MODEL = """<ir_version: 10, opset_import: ["" : 20]> g (float[1,3,8,8] x, float[8] z)
    => (float[1,3,6,6] y, float[8] s) {
    [pool] p = MaxPool<kernel_shape=[3,3]>(x)
    [exp] y = Exp(p)
    [neg] s = Neg(z)
}"""
_SCRIPT = """
import sys
import numpy as np
import onnxruntime as ort

options = ort.SessionOptions()
options.intra_op_num_threads = 1
session = ort.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
draws = np.random.default_rng(0)
feed = {
    i.name: draws.standard_normal(i.shape).astype({"tensor(float)": np.float32}[i.type])
    for i in session.get_inputs()
}
names = [o.name for o in session.get_outputs()]
shapes = [o.shape for o in session.get_outputs()]
outputs = session.run(None, feed)
assert [list(o.shape) for o in outputs] == shapes
(again,) = session.run([names[1]], feed)
assert (again == outputs[1]).all()

binding = session.io_binding()
for name, array in feed.items():
    binding.bind_cpu_input(name, array)
held = np.zeros(shapes[0], np.float32)
binding.bind_output(names[0], "cpu", 0, np.float32, held.shape, held.ctypes.data)
binding.bind_output(names[1])
session.run_with_iobinding(binding)
assert (held == outputs[0]).all()
np.savez(sys.argv[2], **dict(zip(names, binding.copy_outputs_to_cpu())))
"""
_LINE = 'session = ort.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])'
_OURS = _LINE.replace("ort.InferenceSession", "__import__('collage_core').Session")


@pytest.mark.ci
def test_one_line_is_changed(tmp_path: Path) -> None:
    model, bundle = tmp_path / "m.onnx", tmp_path / "m.collage"
    onnx.save(onnx.parser.parse_model(_MODEL), model)
    found = optimize(model, target=Target("cpu", 1), backends=["onnxruntime"], rounds=0)
    save(Bundle(found.graph, found.placement), bundle)
    assert _SCRIPT.count(_LINE) == 1
    answers = []
    for script, file in ((_SCRIPT, model), (_SCRIPT.replace(_LINE, _OURS), bundle)):
        output = tmp_path / f"{file.suffix}.npz"
        subprocess.run([sys.executable, "-c", script, file, output], check=True, timeout=120)
        answers.append(dict(np.load(output)))
    theirs, ours = answers
    assert ours.keys() == theirs.keys()
    for name, expected in theirs.items():
        np.testing.assert_allclose(ours[name], expected, rtol=1e-5)
