"""The paper's tables and figures as grids of runs, with the published numbers beside ours.

Planning reads no data and needs no torch; only `worker` trains.
"""
