#!/usr/bin/env python3
"""Checks that includes point down the layers (docs/overview.md), and that low layers stay clean."""
import re
import sys

from source_tree import ROOT, TORCH, cpp_files, includes_of, resolve

CORE = {"base", "control", "rendezvous"}
BELOW = {  # What each layer may include besides itself.
    "base": set(),
    "control": {"base"},
    "rendezvous": {"base", "control"},
    "comm": CORE,
    "flat": {"base"},
    "recompute": {"base"},
    "ddp": CORE | {"comm", "flat", "recompute"},
    "fsdp": CORE | {"comm", "flat", "recompute"},
    "optim": CORE | {"comm", "flat"},
    "checkpoint": CORE | {"comm", "flat"},
    "data": {"base"},
    "profile": CORE | {"comm", "flat"},
    "umbrella": CORE | {"comm", "flat", "recompute", "ddp", "fsdp", "optim", "checkpoint", "data",
                        "profile"},
    "convoyrun": {"base", "control"},
    "train_gpt": CORE | {"comm", "flat", "recompute", "ddp", "fsdp", "optim", "checkpoint", "data",
                         "profile", "umbrella"},
}
NO_TORCH = CORE | {"convoyrun"}
READS_ENVIRONMENT = "src/base/env.cpp"
GETENV = re.compile(r"\b(secure_)?getenv\s*\(")


def layer_of(path):
    """The layer a file belongs to, or None for tests, benchmarks and the like."""
    parts = path.parts
    if parts[:2] == ("include", "convoy"):
        if len(parts) == 3:  # convoy.h; convoy/version.h is generated and belongs to base.
            return "umbrella"
        return parts[2]
    if parts[0] == "src":
        return parts[2] if parts[1] == "programs" else parts[1]
    return None


def included_layer(path, name):
    if name == "convoy/version.h":
        return "base"
    file = resolve(path, name)
    return layer_of(file) if file else None


def problems_of(path):
    layer = layer_of(path)
    if layer is None:
        return
    if layer not in BELOW:
        yield 1, f"there is no layer '{layer}' (known: {', '.join(BELOW)})"
        return
    for line, name, quoted in includes_of(path):
        if TORCH.match(name) and layer in NO_TORCH:
            yield line, f"layer {layer} does without libtorch, but this includes <{name}>"
        other = included_layer(path, name)
        if other is None:
            if quoted:
                yield line, f'"{name}" is no file of the project; use <{name}> for others\' headers'
        elif other != layer and other not in BELOW[layer]:
            yield line, f"layer {layer} must not include {other} ({name})"
    if str(path) != READS_ENVIRONMENT:
        for number, text in enumerate((ROOT / path).read_text().splitlines(), 1):
            if GETENV.search(text.split("//")[0]):
                yield number, f"only {READS_ENVIRONMENT} reads the environment"


def main():
    files = cpp_files()
    found = 0
    for path in files:
        for line, text in problems_of(path):
            print(f"{path}:{line}: {text}")
            found += 1
    print(f"check_layers: {len(files)} files, {found} problems")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
