"""Its being here puts this folder on the import path: the benchmarks, one folder down, use the same helpers."""
