"""Processes of a bench or race: the first failure ends the others, and a signal leaves none."""
import os
import pathlib
import signal
import subprocess
import sys
import time
import unittest

sys.dont_write_bytecode = True
SCRIPTS = pathlib.Path(__file__).resolve().parent.parent.parent / "scripts"
# A launcher that leaves its ranks, in sessions of their own, when it is killed.
LAUNCHER = "setsid sleep {0} & setsid sleep {0} & exec sleep {0}"
PARENT = """
import sys
sys.dont_write_bytecode = True
sys.path.insert(0, sys.argv[1])
import bench_children as children
children.end_on_signals()
started = []
try:
    for command in sys.argv[2:]:
        started.append(children.start(["bash", "-c", command], None))
    print("started", flush=True)
    failed = children.wait_for(started, limit_s=60)
    print("failed", failed, flush=True)
except children.Stopped as stopped:
    print("stopped", stopped.args[0], flush=True)
finally:
    children.stop(started)
"""


class Children(unittest.TestCase):
    def setUp(self):
        self.mark = f"600.{os.getpid()}{time.monotonic_ns() % 1000000}"

    def parent(self, *commands):
        return subprocess.Popen([sys.executable, "-c", PARENT, str(SCRIPTS), *commands],
                                stdout=subprocess.PIPE, text=True)

    def left(self):
        """How many of this test's sleeping processes there are."""
        count = 0
        for line in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
            try:
                count += line.read_bytes() == f"sleep\0{self.mark}\0".encode()
            except OSError:
                pass  # It has just ended.
        return count

    def test_the_first_failure_ends_all_whatever_its_place(self):
        began = time.monotonic()
        parent = self.parent(LAUNCHER.format(self.mark), "sleep 0.5; exit 3")
        out, _ = parent.communicate(timeout=30)
        self.assertIn("failed 1", out)
        self.assertEqual(self.left(), 0)
        self.assertLess(time.monotonic() - began, 20)

    def test_what_a_launcher_leaves_behind_is_ended(self):
        parent = self.parent(f"setsid sleep {self.mark} & sleep 0.3")
        out, _ = parent.communicate(timeout=30)
        self.assertIn("failed None", out)
        self.assertEqual(self.left(), 0)

    def test_a_signal_leaves_nothing(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            parent = self.parent(LAUNCHER.format(self.mark), f"sleep {self.mark}")
            self.assertEqual(parent.stdout.readline(), "started\n")
            deadline = time.monotonic() + 20
            while self.left() < 4 and time.monotonic() < deadline:
                time.sleep(0.05)
            parent.send_signal(number)
            out, _ = parent.communicate(timeout=30)
            self.assertIn(f"stopped {int(number)}", out)
            self.assertEqual(self.left(), 0)


if __name__ == "__main__":
    unittest.main()
