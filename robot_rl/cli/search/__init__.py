"""Searches over options that stop bad runs early: `robot-rl train --multirun search=asha`."""
