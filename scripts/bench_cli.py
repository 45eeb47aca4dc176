"""The command line of scripts/bench."""
import argparse
import difflib
import os
import sys

STRATEGIES = ("single", "alone", "ddp", "zero1", "fsdp")  # In the order of the table.
# The floor comes last: the first numbers to compare are there half a bench earlier.
DEFAULT_ORDER = ("single", "ddp", "fsdp", "alone")
MODELS = ("tiny", "small", "base", "gpt2-124m")

# Flags of train_gpt that the bench decides itself, and what to use in their place.
OWN_FLAGS = {
    "--strategy": "--strategies before the '--'",
    "--model": "--model before the '--'",
    "--steps": "--steps before the '--'",
    "--data": "--data before the '--'",
    "--json": "--out: the folder holds <strategy>.jsonl",
    "--trace": "--out: the folder holds <strategy>.trace.json",
    "--threads": "--ranks: each rank has one thread on a core of its own",
    "-h": "train_gpt --help",
    "--help": "train_gpt --help",
    "--version": "train_gpt --version",
}
# Flags of train_gpt that make no sense in a bench, and why.
REFUSED_FLAGS = {
    "--save": "its runs would write over each other's checkpoints",
    "--save-every": "saving is no part of what it compares",
    "--resume": "its runs all begin with the first weights",
}


class UsageError(Exception):
    """What was asked for cannot be; the text says why in one line."""


class Parser(argparse.ArgumentParser):
    def error(self, message):
        raise UsageError(f"{message} (see --help)")


def whole(least):
    def convert(text):
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least:
            raise argparse.ArgumentTypeError(f"takes a whole number from {least}, got '{text}'")
        return value

    return convert


def make_parser():
    parser = Parser(
        prog="bench", allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="scripts/bench [flags] [-- train_gpt flags]",
        description="Trains the same GPT on the same text as one process, under DDP and under "
                    "FSDP, and compares them.\nThe table goes to standard output, everything "
                    "else to standard error.",
        epilog="strategies:\n"
               "  single  one process, with the cores of all ranks as its threads\n"
               "  alone   as many single processes at once as there are ranks, each with one "
               "rank's\n          share: no communication, so the floor for the others\n"
               "  ddp     replicated parameters\n"
               "  zero1   the same, the optimizer's state sharded\n"
               "  fsdp    parameters, gradients and optimizer state sharded\n\n"
               "exit code: 0 all ran and agree, 1 a run failed, 2 usage, 3 losses disagree")
    parser.add_argument("--ranks", type=whole(1), default=2, metavar="N", help="ranks (2)")
    parser.add_argument("--model", default="small", metavar="NAME",
                        help="tiny, small, base or gpt2-124m (small)")
    parser.add_argument("--strategies", metavar="LIST",
                        help="which to run, in this order (single,alone,ddp,fsdp, of which alone "
                             "runs last)")
    parser.add_argument("--steps", type=whole(1), default=40, metavar="N", help="steps (40)")
    parser.add_argument("--warmup", type=whole(0), default=3, metavar="N",
                        help="first steps that are trained but not timed (3)")
    parser.add_argument("--data", action="append", default=[], metavar="PATH",
                        help="file or folder with text; may be repeated (Shakespeare's plays)")
    parser.add_argument("--out", metavar="DIR",
                        help="folder of the results (build/bench/<UTC>; build/bench/latest leads "
                             "to the newest)")
    parser.add_argument("--programs", metavar="DIR",
                        help="use train_gpt and convoyrun of this folder; set up and build nothing")
    return parser


def nearest(name, names):
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"; did you mean '{close[0]}'?" if close else ""


def check_name(name, names, what):
    if name not in names:
        raise UsageError(f"there is no {what} '{name}'{nearest(name, names)} ({', '.join(names)})")


def refuse_unknown(parser, unknown):
    flag = next((text for text in unknown if text.startswith("-")), None)
    if flag is None:
        raise UsageError(f"unexpected argument '{unknown[0]}' (see --help)")
    flag = flag.split("=")[0]
    known = [name for action in parser._actions for name in action.option_strings]
    raise UsageError(f"there is no flag '{flag}'{nearest(flag, known)}; flags of train_gpt go "
                     "behind '--'")


def check_training_flags(flags):
    for text in flags:
        flag = text.split("=")[0]
        if flag in OWN_FLAGS:
            raise UsageError(f"{flag} is decided by the bench; use {OWN_FLAGS[flag]}")
        if flag in REFUSED_FLAGS:
            raise UsageError(f"the bench does not take {flag}: {REFUSED_FLAGS[flag]}")


def read_strategies(text):
    """The strategies in the order of the table, and in the order in which they run."""
    if text is None:
        return list(STRATEGIES), list(DEFAULT_ORDER)
    names = list(dict.fromkeys(name for name in text.split(",") if name))
    if not names:
        raise UsageError("--strategies names none")
    for name in names:
        check_name(name, STRATEGIES, "strategy")
    return names, names


def value_of(flags, name):
    """The whole number of the last `--name N` or `--name=N` among train_gpt's flags, or None."""
    value = None
    for at, text in enumerate(flags):
        if text == name and at + 1 < len(flags):
            value = flags[at + 1]
        elif text.startswith(name + "="):
            value = text.split("=", 1)[1]
    if value is None:
        return None
    try:
        return whole(1)(value)
    except argparse.ArgumentTypeError as error:
        raise UsageError(f"{name} {error}") from error


def parse(arguments):
    """Options of one bench: argparse's, with `strategies`, `order` and `training_flags` as
    lists."""
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    parser = make_parser()
    options, unknown = parser.parse_known_args(arguments[:cut])
    if unknown:
        refuse_unknown(parser, unknown)
    options.training_flags = arguments[cut + 1:]
    check_training_flags(options.training_flags)
    check_name(options.model, MODELS, "model")
    options.strategies, options.order = read_strategies(options.strategies)
    for path in options.data:
        if not os.path.exists(path):
            raise UsageError(f"cannot read the data '{path}': no such file or folder")
    if options.warmup >= options.steps:
        raise UsageError(f"--warmup {options.warmup} leaves nothing to time of --steps "
                         f"{options.steps}")
    return options


if __name__ == "__main__":
    sys.exit("this is a part of scripts/bench")
