#!/usr/bin/env python3
"""Checks each source file: length, first line, and habits that the style guide rules out."""
import re
import sys

from source_tree import ROOT, cpp_files, tracked

MAX_LINES = 400
MAX_COLUMNS = 100
RULED_OUT = (
    (re.compile(r"\b(TODO|FIXME|XXX)\b"), "finish it, but leave no marker", False),
    (re.compile(r"\bfriend\b"), "no friends: give the class a public seam", True),
    (re.compile(r"(^|[^\w])new\s+[A-Za-z_:]"), "no raw new: value or unique_ptr", True),
    (re.compile(r"\bdelete\s+[a-z_]"), "no raw delete", True),
)
STRING_OR_COMMENT = re.compile(r'"(\\.|[^"\\])*"|//.*')


def code_of(line):
    return STRING_OR_COMMENT.sub('""', line)


def cpp_problems(path, lines):
    if not re.match(r"// \S+ \S+", lines[0]):
        yield 1, "the first line must say the file's one job: // Splits parameters into buckets."
    directives = [line for line in lines if line.startswith("#")]
    if path.suffix == ".h" and directives[:1] != ["#pragma once"]:
        yield 1, "a header says its job and then #pragma once"
    in_sources = path.parts[0] in ("include", "src")
    for number, line in enumerate(lines, 1):
        for pattern, text, code_only in RULED_OUT:
            if code_only and not in_sources:
                continue
            if pattern.search(code_of(line) if code_only else line):
                yield number, text


def script_problems(lines):
    text = "\n".join(lines[:3])
    if not re.search(r'^(# \S|""")', text, re.MULTILINE):
        yield 1, "say the file's job in its first lines"


def length_problems(lines):
    if len(lines) > MAX_LINES:
        yield MAX_LINES + 1, f"{len(lines)} lines; a file has one job and at most {MAX_LINES} lines"


def column_problems(lines):
    for number, line in enumerate(lines, 1):
        if line != line.rstrip():
            yield number, "blanks at the end of the line"
        if len(line) > MAX_COLUMNS:
            yield number, f"{len(line)} columns; at most {MAX_COLUMNS}"


def umbrella_problems():
    """convoy/convoy.h includes every public header."""
    umbrella = ROOT / "include/convoy/convoy.h"
    text = umbrella.read_text()
    for path in tracked("include/convoy/*/*.h"):
        name = str(path.relative_to("include"))
        if f'"{name}"' not in text:
            yield f'include/convoy/convoy.h:1: lacks "{name}"'


def main():
    problems = []
    cpp = cpp_files()
    scripts = tracked("scripts/*", ".ci/*", "cmake/*.cmake", "*CMakeLists.txt")
    scripts = [path for path in scripts if path.suffix in ("", ".py", ".sh", ".cmake", ".txt")
               and path.name != "requirements-python.txt"]
    for path in cpp + scripts:
        text = (ROOT / path).read_text()
        lines = text.splitlines()
        if not lines:
            problems.append(f"{path}:1: empty file")
            continue
        found = list(length_problems(lines))
        if path in cpp:
            found += cpp_problems(path, lines)
        else:
            found += column_problems(lines)  # Of C++, scripts/format sees to that.
            if path.name != "CMakeLists.txt":
                found += script_problems(lines)
        if not text.endswith("\n"):
            found.append((len(lines), "no newline at the end"))
        problems += [f"{path}:{line}: {what}" for line, what in sorted(found)]
    problems += umbrella_problems()
    for problem in problems:
        print(problem)
    print(f"check_files: {len(cpp + scripts)} files, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
