"""Child processes that end with their parent: started, watched and stopped together."""
import ctypes
import os
import pathlib
import signal
import subprocess
import time

GRACE_S = 10
POLL_S = 0.2
LIBC = ctypes.CDLL(None)
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


class Stopped(Exception):
    """A signal asks the program to end; what it has started is stopped on the way out."""


def end_on_signals():
    """From now on SIGINT, SIGTERM and SIGHUP raise Stopped with their number. Processes that have
    lost their parent become children of this one, so that stop() finds them."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def stop_on(number, _frame):
        for each in numbers:
            signal.signal(each, signal.SIG_IGN)  # A second one must not cut the stopping short.
        raise Stopped(number)

    for number in numbers:
        signal.signal(number, stop_on)
    LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1)


def start(command, log, cores=None, env=None):
    """A process in a session of its own, on `cores` (None: where it likes)."""
    def prepare():
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)  # Nothing runs on when the parent is killed.
        if cores is not None:
            os.sched_setaffinity(0, cores)

    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log,
                            stderr=subprocess.STDOUT, env=env, start_new_session=True,
                            preexec_fn=prepare)


def wait_for(children, idle=lambda: None, limit_s=None):
    """Until all have ended, one has failed, or the time is up: the number of the first failure
    seen, or None. Calls `idle` meanwhile. Error: TimeoutError."""
    deadline = None if limit_s is None else time.monotonic() + limit_s
    while True:
        codes = [child.poll() for child in children]
        failed = next((at for at, code in enumerate(codes) if code not in (None, 0)), None)
        if failed is not None or None not in codes:
            return failed
        if deadline is not None and time.monotonic() > deadline:
            raise TimeoutError(f"no end after {limit_s} s")
        idle()
        time.sleep(POLL_S)


def stop(children):
    """Ends those that still run: asked first, so that launchers end their ranks, then killed. What
    launchers have left behind is killed too."""
    for child in children:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGTERM)
    deadline = time.monotonic() + GRACE_S
    for child in children:
        try:
            child.wait(max(0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
    while orphans := own_children():
        for pid in orphans:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)  # Its own children become ours now.


def own_children():
    """The processes whose parent is this one; none where the kernel does not tell."""
    try:
        text = pathlib.Path(f"/proc/self/task/{os.getpid()}/children").read_text()
    except FileNotFoundError:
        return set()
    return {int(pid) for pid in text.split()} - INHERITED


INHERITED = frozenset()
INHERITED = frozenset(own_children())  # Of a shell that became this program: not ours to end.
