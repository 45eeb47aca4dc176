"""Trains train_gpt's model on train_gpt's batches in PyTorch: single, ddp or fsdp2 over Gloo.

Started by race.py; rank r is pinned to core r modulo the cores. Rank 0 writes one JSON object:
step_s and loss of every step, and the Pss of every rank after the last one.
"""
import argparse
import json
import os
import pathlib
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from safetensors.torch import load_file

from gpt_torch import GPT, decay_groups


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mode", choices=["single", "ddp", "fsdp2"], required=True)
    for name in ("layers", "dim", "heads", "seq", "vocab", "micro-batch", "steps"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--lr", type=float, required=True)
    parser.add_argument("--weight-decay", type=float, required=True)
    parser.add_argument("--weights", required=True)
    parser.add_argument("--batches", required=True)
    parser.add_argument("--out", required=True)
    return parser.parse_args()


def pss_bytes():
    for line in pathlib.Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return None


def wrap(model, mode, world):
    if mode == "ddp":
        return nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    if mode == "fsdp2":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
        mesh = init_device_mesh("cpu", (world,))
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    return model


def main():
    args = arguments()
    rank = int(os.environ.get("RANK", 0))
    world = int(os.environ.get("WORLD_SIZE", 1))
    os.sched_setaffinity(0, {rank % os.cpu_count()})
    torch.set_num_threads(1)
    if args.mode != "single":
        dist.init_process_group("gloo")
    model = GPT(args.vocab, args.seq, args.layers, args.dim, args.heads)
    model.load_state_dict(load_file(args.weights))
    wrapped = wrap(model, args.mode, world)
    optimizer = torch.optim.AdamW(decay_groups(model, args.weight_decay), lr=args.lr,
                                  betas=(0.9, 0.95), fused=True)
    windows = load_file(args.batches)["windows"].long()
    seconds, losses = [], []
    for step in range(args.steps):
        first = (step * world + rank) * args.micro_batch
        rows = windows[first:first + args.micro_batch]
        inputs, targets = rows[:, :-1].contiguous(), rows[:, 1:].contiguous()
        if args.mode != "single":
            dist.barrier()
        begin = time.perf_counter()
        loss = F.cross_entropy(wrapped(inputs).flatten(0, 1), targets.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        seconds.append(time.perf_counter() - begin)
        losses.append(loss.detach())
    mine = {"pss": pss_bytes(), "losses": [float(loss) for loss in losses]}
    everyone = [mine]
    if args.mode != "single":
        dist.barrier()  # All are still there, with all that they hold.
        everyone = [None] * world
        dist.all_gather_object(everyone, mine)
    if rank == 0:
        mean = [sum(column) / world for column in zip(*(one["losses"] for one in everyone))]
        result = {"step_s": seconds, "loss": mean, "pss": [one["pss"] for one in everyone],
                  "version": torch.__version__}
        pathlib.Path(args.out).write_text(json.dumps(result))
    if args.mode != "single":
        dist.destroy_process_group()


main()
