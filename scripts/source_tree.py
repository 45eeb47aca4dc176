"""The tracked sources of the project and what they include, for the checks beside this file."""
import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent
INCLUDE = re.compile(r'^\s*#\s*include\s*(<[^>]+>|"[^"]+")', re.MULTILINE)
TORCH = re.compile(r"^(torch|ATen|c10)/")


def tracked(*patterns):
    """Tracked files that match, and files about to be added; sorted, as paths below ROOT."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *patterns],
        cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [path for path in sorted(set(map(pathlib.Path, listed.splitlines())))
            if (ROOT / path).is_file()]


def cpp_files():
    return tracked("*.h", "*.cpp")


def includes_of(path):
    """(line number, included name, is it in quotes) of each include of a file."""
    text = (ROOT / path).read_text()
    return [(text.count("\n", 0, found.start()) + 1, found[1][1:-1], found[1][0] == '"')
            for found in INCLUDE.finditer(text)]


def resolve(path, name):
    """The project's file that `path` gets by including `name`, or None."""
    for candidate in (pathlib.Path("include") / name, pathlib.Path("src") / name,
                      pathlib.Path("tests") / name, path.parent / name):
        if (ROOT / candidate).is_file():
            return candidate
    return None


def reaches_torch(path, seen=None):
    """True if compiling `path` reads a header of libtorch."""
    seen = set() if seen is None else seen
    seen.add(path)
    for _, name, _ in includes_of(path):
        if TORCH.match(name):
            return True
        file = resolve(path, name)
        if file and file not in seen and reaches_torch(file, seen):
            return True
    return False
