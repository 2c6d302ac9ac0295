"""TVM's code generator for CUDA: a second backend. Importing this loads nothing."""
