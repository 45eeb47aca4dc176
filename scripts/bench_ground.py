"""What a bench stands on: the programs, the text and the machine."""
import dataclasses
import os
import pathlib
import platform
import subprocess
import sys

import setup_downloads
import setup_pins

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "release"
PROGRAMS = ("train_gpt", "convoyrun")


class GroundError(Exception):
    """Something that the runs need is not there; the text is all that the user needs."""


@dataclasses.dataclass
class Programs:
    train_gpt: pathlib.Path
    convoyrun: pathlib.Path


@dataclasses.dataclass
class Data:
    paths: list
    note: str | None = None  # For the table, where it is not the text one would expect.


def run_quietly(command, what):
    """Runs `command` with its output on standard error."""
    done = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=sys.stderr.fileno())
    if done.returncode != 0:
        raise GroundError(f"{what} failed with exit code {done.returncode}: {' '.join(command)}")


def find_programs(options, say):
    """Builds the programs where that is needed, and finds them."""
    if options.programs:
        folder = pathlib.Path(options.programs).resolve()
    else:
        folder = BUILD / "bin"
        if not (BUILD / "build.ninja").exists():
            say("setting up and building; the first time this takes some minutes")
            run_quietly([str(ROOT / "scripts" / "setup")], "the set-up")
            run_quietly(["cmake", "--preset", "release"], "configuring")
        run_quietly(["cmake", "--build", str(BUILD), "--target", *PROGRAMS], "the build")
    for name in PROGRAMS:
        if not os.access(folder / name, os.X_OK):
            raise GroundError(f"there is no program {folder / name}")
    return Programs(*(folder / name for name in PROGRAMS))


def find_data(options, say):
    """The text of the user; else Shakespeare's plays; else libtorch's own headers."""
    if options.data:
        return Data([os.path.abspath(path) for path in options.data])
    plays = setup_downloads.DEPS / "text" / setup_pins.TEXT.name
    if not is_whole(plays) and not options.programs:
        say("the default text is missing: running scripts/setup")
        run_quietly([str(ROOT / "scripts" / "setup")], "the set-up")
    if is_whole(plays):
        return Data([str(plays)])
    headers = torch_headers()
    if headers is None:
        raise GroundError("there is no default text and no libtorch to take headers from; give "
                          "--data with a file or folder")
    say(f"the default text is not to be had; training on the C++ headers of libtorch in {headers}")
    return Data([str(headers)], "Shakespeare's plays could not be fetched, so this is C++: the "
                                "headers of libtorch.")


def is_whole(plays):
    return setup_downloads.whats_wrong(plays, (setup_pins.TEXT,)) is None


def torch_headers():
    """ATen's headers below the libtorch that the build uses, or None."""
    roots = [setup_downloads.DEPS / "libtorch" / "torch"]
    cache = BUILD / "CMakeCache.txt"
    if cache.exists():
        for line in cache.read_text().splitlines():
            if line.startswith("CONVOY_TORCH_ROOT:"):
                roots.insert(0, pathlib.Path(line.split("=", 1)[1]))
    for root in roots:
        headers = root / "include" / "ATen" / "native"
        if headers.is_dir():
            return headers
    return None


def cpu_name():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        for line in file:
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or None


def memory_bytes():
    with open("/proc/meminfo", encoding="utf-8") as file:
        for line in file:
            if line.startswith("MemTotal:"):
                return int(line.split()[1]) * 1024
    return None


def describe_machine():
    return {"cpu": cpu_name(), "cores": len(os.sched_getaffinity(0)),
            "memory_bytes": memory_bytes(), "kernel": platform.release(),
            "load_1m": round(os.getloadavg()[0], 2)}
