"""Measurements: what conquiet costs against raw loops and against its peers. `make bench` runs them all."""
