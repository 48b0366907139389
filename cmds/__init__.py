"""Commands: one thin module each."""

import sys

if sys.argv[0].rpartition("/")[2].partition("-")[0] == "dnnp":
    # A command that starts up: Ctrl-C waits until it can be acted on (`guardian.guard`). The
    # module in C is there at once; that around it takes a while to load, in which Ctrl-C may come.
    import _signal  # type: ignore[import-not-found]

    _signal.pthread_sigmask(_signal.SIG_BLOCK, {_signal.SIGINT})
