"""Who eats a corpus. Folders, from commands down to data: command_line, studies, run, planning, adaptation, export, scores,
run_files, distributed, network, data; each imports only from those after it.

This package imports `manifests` only; it runs on a machine that has no ray.
"""
