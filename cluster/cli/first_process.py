"""Process 1 of a container: it starts the command as its child, passes signals on, and collects what ends.

The kernel gives process 1 the children of processes that ended, which stay as zombies until it waits for them, and
drops signals to it that have no handler. Engines and Ray start processes of their own, and `docker stop` sends SIGTERM.
"""

from __future__ import annotations

import os
import signal
import sys

_PASSED_ON = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2})
_FROM_KERNEL = 0x80
"""`si_code` of a signal that the kernel sent, such as for Ctrl-C. A terminal sends that to the child, too."""


def split_off(first: int = 1) -> None:
    """Return at once, unless this is the process with the number `first`; then return in a child of it.

    The first process stays behind and ends with the child's exit status; after the end of a child by a signal, with 128
    and the signal's number, as shells do. Must be called before there are threads.
    """
    if os.getpid() != first or sys.platform != "linux":
        return
    waited = _PASSED_ON | {signal.SIGCHLD}
    # A blocked signal is kept, even for process 1, so none is lost before the wait for it.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, waited)
    child = os.fork()
    if child == 0:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return
    status = None
    while status is None:
        arrived = signal.sigwaitinfo(waited)
        if arrived.si_signo == signal.SIGCHLD:
            status = _collect(child)
        # The hang-up of a terminal goes to the leader of its session alone, which is this process.
        elif arrived.si_code != _FROM_KERNEL or arrived.si_signo == signal.SIGHUP:
            os.kill(child, arrived.si_signo)
    os._exit(status)


def _collect(child: int) -> int | None:
    """Wait for all processes that have ended. Return the exit status of the child, if it is one of them."""
    status = None
    while True:
        try:
            pid, found = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return status
        if pid == 0:
            return status
        if pid == child:
            code = os.waitstatus_to_exitcode(found)
            status = code if code >= 0 else 128 - code
