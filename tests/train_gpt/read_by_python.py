#!/usr/bin/env python3
"""Trains a moment with train_gpt and reads the checkpoint with Python's safetensors.

usage: read_by_python.py PYTHON TRAIN_GPT   (PYTHON: of the environment of setup --with-python)
Exit code: 0 the same, 77 skipped because there is no such environment.
"""
import os
import subprocess
import sys
import tempfile

CHECK = r"""
import sys
import numpy
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

folder = sys.argv[1]
model = load_file(f"{folder}/model.safetensors")
assert model["tok.weight"].shape == (256, 32) and model["tok.weight"].dtype == numpy.float32
assert all(numpy.isfinite(value).all() for value in model.values())
total = sum(value.size for value in model.values())
assert total == int(sys.argv[2]), (total, sys.argv[2])
with safe_open(f"{folder}/model.safetensors", "numpy") as file:
    assert file.metadata() == {"format": "pt"}, file.metadata()
state = load_file(f"{folder}/optimizer.safetensors")
assert len(state) == 3 * len(model)
for name, value in model.items():
    assert state[f"state.{name}.exp_avg"].shape == value.shape
    assert state[f"state.{name}.step"] == 2
# And the other way round: what Python wrote is read by train_gpt.
save_file(model, f"{folder}/model.safetensors", {"format": "np"})
save_file(state, f"{folder}/optimizer.safetensors")
print(len(model), "tensors")
"""


def train(program, data, *flags):
    command = [program, "--model", "tiny", "--layers=2", "--dim=32", "--heads=2", "--seq=32",
               "--threads=1", "--sample=0", "--eval-windows=12", "--steps=2", "--data", data, *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"train_gpt failed: {done.stderr}")
    return done.stdout


def main():
    python, program = sys.argv[1:]
    if not os.path.exists(python):
        print("skipped: there is no Python with safetensors; run scripts/setup --with-python")
        return 77
    with tempfile.TemporaryDirectory() as folder:
        data = os.path.join(folder, "text.txt")
        with open(data, "w", encoding="utf-8") as file:
            file.write("to be or not to be, that is the question.\n" * 900)
        saved = os.path.join(folder, "saved")
        out = train(program, data, "--save", saved)
        parameters = out.split(" parameters;")[0].split()[-1].replace(",", "")
        print(subprocess.run([python, "-c", CHECK, f"{saved}/step_00000002", parameters],
                             check=True, capture_output=True, text=True).stdout, end="")
        again = train(program, data, "--resume", saved)
        if out.split("xxh3 ")[-1] != again.split("xxh3 ")[-1]:
            sys.exit("what Python wrote is not what was saved")
    print("the same")
    return 0


if __name__ == "__main__":
    sys.exit(main())
