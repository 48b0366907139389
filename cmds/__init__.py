"""Commands: one thin module each."""

import sys

if sys.argv[0].rpartition("/")[2].partition("-")[0] == "dnnp":
    # A command that starts up: Ctrl-C waits until somebody can act on it (`guardian.guard`).
    import signal

    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
