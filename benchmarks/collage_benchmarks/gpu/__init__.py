"""One script for a bare machine with a GPU: what libraries answer there, and what networks take."""
