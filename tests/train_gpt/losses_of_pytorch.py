"""Trains 200 steps here and in PyTorch, from the same weights and batches, and compares the losses.

losses_of_pytorch.py PYTHON RACE PROGRAMS; exit 77 (skipped) where PYTHON is not there.
"""
import os
import sys

STEPS = 200 - 3  # The race warms up with three.

python, race, programs = sys.argv[1:]
if not os.access(python, os.X_OK):
    print("skipped: there is no Python environment (scripts/setup --with-python makes it)")
    sys.exit(77)
os.execv(python, [python, "-B", race, "--programs", programs, "--model", "tiny", "--rounds", "1",
                  "--steps", str(STEPS), "--max-loss-difference", "1e-5"])
