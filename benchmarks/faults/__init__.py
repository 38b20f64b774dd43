"""A campaign of faults: runs and studies that are killed, starved, damaged or doubled, and must end as if undisturbed.

make faults     writes results/reliability/faults.csv, a row for each fault

hub.py        a small Hub that can be stopped, slow, broken or cut off
runs.py       one embedded run in a process of its own, and what must hold after a fault
kinds.py      faults of a run: killed, disk full, damaged files, no memory, started twice, a Hub in trouble
workflow.py   faults of a study: its notebook's kernel or its workflow killed, disk full, started twice
__main__.py   draws the faults and keeps their table
"""
