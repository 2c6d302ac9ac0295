"""Apache TVM as a Collage backend. Importing this loads nothing of TVM."""
