"""Tests of the benchmarks themselves: arithmetic, and one dry run."""
