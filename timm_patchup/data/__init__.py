"""Data: the small data set inside the package and, where they are defined, the benchmarks of the paper."""
