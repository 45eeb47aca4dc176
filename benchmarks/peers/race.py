"""Alternating runs of Convoy and its peers on the same model, weights and batches; one table.

Every round runs every program once, in an order that turns round from round to round. Rank r is
pinned to core r modulo the cores and has one thread. See README.md beside this file.
"""
import argparse
import json
import os
import pathlib
import signal
import socket
import sys
import tempfile

import race_table
import bench_children as children  # Found since race_table looks in scripts/ too.

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
DEPS = pathlib.Path(os.environ.get("CONVOY_DEPS", ROOT / ".deps"))
TEXT = DEPS / "text" / "shakespeare"
MODELS = {  # layers, dim, heads, seq, windows of a rank in a step
    "tiny": (4, 128, 4, 64, 8),
    "small": (6, 384, 6, 256, 4),
    "base": (8, 768, 12, 128, 1),
}
VOCAB, WARMUP, EVAL_WINDOWS, LR, WEIGHT_DECAY = 256, 3, 4, 3e-4, 0.1
LIMIT_S = 900


class RaceError(Exception):
    pass


def arguments():
    parser = argparse.ArgumentParser(prog="race", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, default="small")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=10, help=f"timed steps a run, after {WARMUP}")
    parser.add_argument("--only", help="names of programs, with | between them (default: all)")
    parser.add_argument("--programs", type=pathlib.Path, metavar="DIR",
                        default=ROOT / "build" / "release" / "bin", help="Convoy's (%(default)s)")
    parser.add_argument("--jax", action="store_true", help="race JAX too")
    parser.add_argument("--allocator", action="store_true",
                        help="also run Convoy with the C library's own handling of freed memory")
    parser.add_argument("--max-loss-difference", type=float, metavar="X",
                        help="exit 1 if a loss differs from PyTorch's by more, relative")
    parser.add_argument("--json", type=pathlib.Path, help="also write everything measured there")
    args = parser.parse_args()
    if args.ranks < 1 or args.rounds < 1 or args.steps < 1:
        parser.error("--ranks, --rounds and --steps take numbers from 1")
    return args


class Race:
    def __init__(self, args, folder):
        self.args, self.folder = args, folder
        self.steps = args.steps + WARMUP
        self.layers, self.dim, self.heads, self.seq, self.micro = MODELS[args.model]
        self.weights = folder / "first"
        self.batches = folder / "batches.safetensors"

    def run(self, commands, environment=None):
        """Runs processes at once; the first that fails, or the time limit, ends all."""
        env = {**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})}
        log = self.folder / "log"
        started, problem = [], None
        with open(log, "w") as file:
            try:
                for command in commands:
                    started.append(children.start([str(part) for part in command], file, env=env))
                failed = children.wait_for(started, limit_s=LIMIT_S)
                if failed is not None:
                    problem = f"exit {started[failed].returncode}"
            except TimeoutError as error:
                failed, problem = 0, str(error)
            finally:
                children.stop(started)
        if problem:
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
            raise RaceError(f"{commands[failed][0]}: {problem}\n{tail}")

    def train_gpt(self, strategy, micro, total, json_file):
        return [self.args.programs / "train_gpt", "--strategy", strategy,
                "--model", self.args.model, "--micro-batch", micro,
                "--global-batch", total, "--steps", self.steps,
                "--seq", self.seq, "--eval-windows", EVAL_WINDOWS, "--sample", 0, "--threads", 1,
                "--lr", LR, "--min-lr", LR, "--warmup-steps", 0, "--clip", 0,
                "--weight-decay", WEIGHT_DECAY, "--data", TEXT, "--json", json_file]

    def prepare(self):
        self.run([[*self.train_gpt("single", self.micro, self.micro, self.folder / "x.jsonl"),
                   "--steps", 0, "--save", self.weights]])
        self.run([[self.args.programs / "export_batches", "--data", TEXT, "--seq", self.seq,
                   "--windows", self.steps * self.micro * self.args.ranks,
                   "--eval-windows", EVAL_WINDOWS,
                   "--out", self.batches]])

    def convoy(self, strategy, environment=None, flags=()):
        separate = {"single": 1, "alone": self.args.ranks}.get(strategy)  # Processes without ranks.
        out = [self.folder / f"convoy.{i}.jsonl" for i in range(separate or 1)]
        if separate:
            commands = [["taskset", "-c", i % os.cpu_count(),
                         *self.train_gpt("single", self.micro, self.micro, file)]
                        for i, file in enumerate(out)]
        else:
            total = self.micro * self.args.ranks
            commands = [[self.args.programs / "convoyrun", "-n", self.args.ranks,
                         "--bind-to", "core", "--quiet", "--",
                         *self.train_gpt(strategy, self.micro, total, out[0]), *flags]]
        self.run(commands, environment)
        return self.read_convoy(out)

    @staticmethod
    def read_convoy(files):
        """Of several processes side by side: the mean of their times, step by step."""
        events = [[json.loads(line) for line in file.read_text().splitlines()] for file in files]
        steps = [[e for e in one if e["event"] == "step"] for one in events]
        ends = [e for one in events for e in one if e["event"] == "end"]
        memory = [rank for end in ends for rank in end["memory"]]
        times = [[step["step_s"] for step in row] for row in zip(*steps)]
        return {"step_s": [sum(row) / len(row) for row in times],
                "slowest_step_s": [max(row) for row in times],
                "loss": [step["loss"] for step in steps[0]],
                "pss": [rank["pss"] for rank in memory],
                "tracked": [rank["parameters"] + rank["gradients"] + rank["optimizer"]
                            for rank in memory]}

    def shape_flags(self):
        return ["--layers", self.layers, "--dim", self.dim, "--heads", self.heads,
                "--seq", self.seq, "--vocab", VOCAB, "--micro-batch", self.micro,
                "--steps", self.steps, "--lr", LR, "--weight-decay", WEIGHT_DECAY]

    def torch(self, mode):
        out = self.folder / "torch.json"
        peer = [HERE / "torch_peer.py", "--mode", mode, *self.shape_flags(), "--out", out,
                "--weights", self.weights / "step_00000000" / "model.safetensors",
                "--batches", self.batches]
        if mode == "single":
            self.run([[sys.executable, *peer]])
        else:
            self.run([[sys.executable, "-m", "torch.distributed.run", "--standalone",
                       "--nproc-per-node", self.args.ranks, *peer]])
        return json.loads(out.read_text())

    def jax(self, mode):
        out = self.folder / "jax.json"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.run([[sys.executable, HERE / "jax_peer.py", "--mode", mode, *self.shape_flags(),
                   "--world", self.args.ranks, "--rank", rank, "--port", port, "--out", out]
                  for rank in range(self.args.ranks)])
        return json.loads(out.read_text())

    def programs(self):
        """Name -> what runs it, in the order of the table."""
        plain = {"CONVOY_ALLOCATOR": "system"}
        found = {
            "PyTorch single": lambda: self.torch("single"),
            "Convoy single": lambda: self.convoy("single"),
            "Convoy alone": lambda: self.convoy("alone"),
            "PyTorch DDP": lambda: self.torch("ddp"),
            "Convoy DDP": lambda: self.convoy("ddp"),
            "PyTorch FSDP2": lambda: self.torch("fsdp2"),
            "Convoy FSDP": lambda: self.convoy("fsdp"),
            "Convoy FSDP, private gather":
                lambda: self.convoy("fsdp", flags=["--no-shared-gather"]),
        }
        if self.args.allocator:
            for strategy in ("single", "alone", "ddp", "fsdp"):
                name = f"Convoy {strategy.upper() if strategy in ('ddp', 'fsdp') else strategy}"
                found[f"{name}, system malloc"] = \
                    lambda strategy=strategy: self.convoy(strategy, plain)
        if self.args.jax:
            found["JAX dp"] = lambda: self.jax("dp")
            found["JAX fsdp"] = lambda: self.jax("fsdp")
        if self.args.only:
            names = [name.strip() for name in self.args.only.split("|")]
            unknown = [name for name in names if name not in found]
            if unknown:
                raise RaceError(f"no program '{unknown[0]}'; there are: {' | '.join(found)}")
            found = {name: found[name] for name in found if name in names}
        return found


def main():
    args = arguments()
    children.end_on_signals()
    with tempfile.TemporaryDirectory(prefix="race.") as folder:
        race = Race(args, pathlib.Path(folder))
        programs = race.programs()
        race.prepare()
        results = {name: [] for name in programs}
        for number in range(args.rounds):
            order = list(programs) if number % 2 == 0 else list(programs)[::-1]
            for name in order:
                print(f"round {number + 1} of {args.rounds}: {name}", file=sys.stderr, flush=True)
                results[name].append(programs[name]())
    if "Convoy alone" in results:
        # A job of equal work whose ranks wait for each other in every step, for nothing else.
        results["Convoy alone, slowest"] = [{"step_s": run["slowest_step_s"]}
                                            for run in results["Convoy alone"]]
    print(race_table.table(args, results, WARMUP))
    if args.json:
        args.json.write_text(json.dumps({"arguments": {k: str(v) for k, v in vars(args).items()},
                                         "results": results}))
    worst = max((difference for *_, difference in race_table.loss_differences(results)),
                default=0.0)
    if args.max_loss_difference is not None and not worst <= args.max_loss_difference:
        raise RaceError(f"losses differ by {worst:.1e}, allowed {args.max_loss_difference:.1e}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (RaceError, OSError) as error:  # OSError: a program that is not there.
        print(f"race: {error}", file=sys.stderr)
        sys.exit(1)
    except children.Stopped as stopped:
        number = stopped.args[0]
        print(f"race: stopped by {signal.Signals(number).name}", file=sys.stderr)
        sys.exit(128 + number)
