"""Whether the settings in which libraries are used are their best: a small grid of others beside them."""
