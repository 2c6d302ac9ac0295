"""Architectures as PyTorch has them, exported to ONNX, placed, and compared with what PyTorch answers.

    python -m collage_benchmarks.architectures                   # all of them; docs/results/architectures
    python -m collage_benchmarks.architectures vit llama_block   # those named

Needs the extra `architectures` of this package: PyTorch, transformers and onnxscript.
"""
