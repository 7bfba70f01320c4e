"""Benchmarks: the cost of conquiet compared with raw loops and with its peers. `make bench` runs all of them."""
