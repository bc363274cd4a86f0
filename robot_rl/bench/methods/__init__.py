"""Benchmark of methods: protocols, the queue of runs, their execution, result files, tables and plots."""
