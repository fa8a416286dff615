"""A network as data: a list of small operations that numpy or ONNX runs, checked before anything runs."""
