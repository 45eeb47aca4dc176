"""What a step has to move by theory, and what was counted, in bytes that a rank sends on a ring."""
import dataclasses

# How often the bytes of all parameters cross a rank's wire in one step, times (N - 1) / N.
PASSES = {
    "ddp": (2, "gradients reduced and handed out"),
    "zero1": (3, "gradients reduced and handed out, parameters gathered once"),
    "fsdp": (3, "parameters gathered twice, gradients reduced once"),
}
BYTES_OF_VALUE = 4


@dataclasses.dataclass
class Traffic:
    strategy: str
    formula: str
    meaning: str
    theory: float
    ring: float  # What the operations that ran would send on a ring.
    stored: float  # What the processor wrote to do them here.
    wire: float  # What really crossed a network.


def on_a_ring(operation, payload, ranks):
    """Bytes that a rank sends, from the bytes of the result of an operation."""
    if operation == "all_reduce":
        return 2 * payload * (ranks - 1) / ranks
    if operation == "reduce_scatter":
        return payload * (ranks - 1)  # The result is one slice.
    if operation in ("all_gather", "broadcast"):
        return payload * (ranks - 1) / ranks
    return 0.0


def traffic(run, parameters):
    """Of a run's mean step and rank; None for one that has no theory or did not get to its end."""
    known = PASSES.get(run["strategy"])
    ranks, operations = run["ranks"], run["comm"]
    if known is None or operations is None or not parameters or ranks < 2:
        return None
    passes, meaning = known
    sums = {kind: sum(stats.get(f"{kind}_bytes") or 0 for stats in operations.values())
            for kind in ("copied", "wire")}
    return Traffic(
        run["strategy"], f"{passes}P(N-1)/N", meaning,
        passes * parameters * BYTES_OF_VALUE * (ranks - 1) / ranks,
        sum(on_a_ring(name, stats.get("payload_bytes") or 0, ranks)
            for name, stats in operations.items()),
        sums["copied"], sums["wire"])
