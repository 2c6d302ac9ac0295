"""Kernels that MetaSchedule finds by trying. Importing this loads nothing of TVM."""
