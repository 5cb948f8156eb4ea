"""Trained models beside their training: what is stored with the weights, prediction on new rows, ONNX."""
