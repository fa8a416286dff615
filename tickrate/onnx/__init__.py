"""Policies as ONNX files: written from the program, and acted with through ONNX Runtime (extra ``onnx``)."""
