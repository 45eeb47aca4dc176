"""The same step in JAX: parameters replicated (dp) or sharded (fsdp), one process a rank.

Started by race.py. Random weights and tokens of the same shapes: it is timed, not compared.
"""
import argparse
import json
import os
import pathlib
import time


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mode", choices=["dp", "fsdp"], required=True)
    for name in ("layers", "dim", "heads", "seq", "vocab", "micro-batch", "steps", "world",
                 "rank", "port"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--lr", type=float, required=True)
    parser.add_argument("--weight-decay", type=float, required=True)
    parser.add_argument("--out", required=True)
    return parser.parse_args()


ARGS = arguments()
os.sched_setaffinity(0, {ARGS.rank % os.cpu_count()})
os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
os.environ["JAX_PLATFORMS"] = "cpu"

import jax  # noqa: E402  (reads the environment when it is imported)
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax.sharding import Mesh, NamedSharding, PartitionSpec  # noqa: E402

BETA1, BETA2, EPS = 0.9, 0.95, 1e-8


def first_weights(key):
    keys = iter(jax.random.split(key, 8 + 8 * ARGS.layers))
    dim = ARGS.dim

    def linear(fan_in, fan_out):
        return {"w": jax.random.normal(next(keys), (fan_in, fan_out)) * 0.02,
                "b": jnp.zeros(fan_out)}

    def norm():
        return {"g": jnp.ones(dim), "b": jnp.zeros(dim)}

    return {"tok": jax.random.normal(next(keys), (ARGS.vocab, dim)) * 0.02,
            "pos": jax.random.normal(next(keys), (ARGS.seq, dim)) * 0.02,
            "ln": norm(), "head": linear(dim, ARGS.vocab)["w"],
            "blocks": [{"ln1": norm(), "ln2": norm(), "qkv": linear(dim, 3 * dim),
                        "proj": linear(dim, dim), "up": linear(dim, 4 * dim),
                        "down": linear(4 * dim, dim)} for _ in range(ARGS.layers)]}


def layer_norm(x, weights):
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * weights["g"] + weights["b"]


def dense(x, weights):
    return x @ weights["w"] + weights["b"]


def forward(weights, tokens):
    x = weights["tok"][tokens] + weights["pos"]
    rows, heads, width = tokens.shape[0], ARGS.heads, ARGS.dim // ARGS.heads
    mask = jnp.tril(jnp.ones((ARGS.seq, ARGS.seq), bool))
    for block in weights["blocks"]:
        parts = jnp.split(dense(layer_norm(x, block["ln1"]), block["qkv"]), 3, -1)
        q, k, v = (part.reshape(rows, ARGS.seq, heads, width).transpose(0, 2, 1, 3)
                   for part in parts)
        scores = jnp.where(mask, q @ k.transpose(0, 1, 3, 2) / width ** 0.5, -1e30)
        attended = (jax.nn.softmax(scores, -1) @ v).transpose(0, 2, 1, 3)
        x = x + dense(attended.reshape(rows, ARGS.seq, ARGS.dim), block["proj"])
        hidden = jax.nn.gelu(dense(layer_norm(x, block["ln2"]), block["up"]), approximate=True)
        x = x + dense(hidden, block["down"])
    return layer_norm(x, weights["ln"]) @ weights["head"]


def loss_of(weights, inputs, targets):
    log_probability = jax.nn.log_softmax(forward(weights, inputs), -1)
    return -jnp.take_along_axis(log_probability, targets[..., None], -1).mean()


def train_step(state, inputs, targets):
    weights, first, second, step = state
    gradients = jax.grad(loss_of)(weights, inputs, targets)
    step = step + 1
    first = jax.tree.map(lambda m, g: BETA1 * m + (1 - BETA1) * g, first, gradients)
    second = jax.tree.map(lambda v, g: BETA2 * v + (1 - BETA2) * g * g, second, gradients)

    def updated(w, m, v):
        decay = ARGS.weight_decay if w.ndim >= 2 else 0.0
        direction = (m / (1 - BETA1 ** step)) / (jnp.sqrt(v / (1 - BETA2 ** step)) + EPS)
        return w * (1 - ARGS.lr * decay) - ARGS.lr * direction

    return jax.tree.map(updated, weights, first, second), first, second, step


def main():
    if ARGS.world > 1:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(f"127.0.0.1:{ARGS.port}", ARGS.world, ARGS.rank)
    mesh = Mesh(np.array(jax.devices()), ("data",))

    def sharding_of(leaf):
        is_cut = ARGS.mode == "fsdp" and leaf.ndim > 0 and leaf.shape[0] % ARGS.world == 0
        return NamedSharding(mesh, PartitionSpec("data") if is_cut else PartitionSpec())

    def first_state(key):
        weights = first_weights(key)
        zeros = jax.tree.map(jnp.zeros_like, weights)
        return weights, zeros, jax.tree.map(jnp.zeros_like, weights), jnp.zeros(())

    shardings = jax.tree.map(sharding_of, jax.eval_shape(first_state, jax.random.PRNGKey(0)))
    state = jax.jit(first_state, out_shardings=shardings)(jax.random.PRNGKey(0))
    rows = NamedSharding(mesh, PartitionSpec("data"))
    step = jax.jit(train_step, in_shardings=(shardings, rows, rows), out_shardings=shardings,
                   donate_argnums=0)
    random = np.random.RandomState(ARGS.rank)
    seconds = []
    for _ in range(ARGS.steps):
        tokens = random.randint(ARGS.vocab, size=(ARGS.micro_batch, ARGS.seq + 1))
        inputs = jax.make_array_from_process_local_data(rows, tokens[:, :-1])
        targets = jax.make_array_from_process_local_data(rows, tokens[:, 1:])
        begin = time.perf_counter()
        state = jax.block_until_ready(step(state, inputs, targets))
        seconds.append(time.perf_counter() - begin)
    if ARGS.rank == 0:
        pathlib.Path(ARGS.out).write_text(json.dumps({"step_s": seconds, "loss": None, "pss": None,
                                                      "version": jax.__version__}))


main()
