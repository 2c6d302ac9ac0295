"""Primitives: planned from groups (`planner`), built and run (`kernel`), stored (`stored`)."""
