"""Random models through the whole of Collage, every answer compared with two opinions on the model as given.

python -m collage_benchmarks.fuzz --models 100 --seed 1
"""
