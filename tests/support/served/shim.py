"""The program `dnnp-NAME` in the folder of `support.served`: it has the server run the command.

It costs 20 ms, so it imports what is built in. Signals that it gets go to the command, and it ends
as the command does.
"""

import _signal
import _socket
import posix
import sys

NUMBER_BYTES = 4


def number(connection: _socket.socket) -> int:
    """The next number that the server says."""
    data = connection.recv(NUMBER_BYTES, _socket.MSG_WAITALL)
    if len(data) < NUMBER_BYTES:
        sys.exit("the server of commands is gone")
    return int.from_bytes(data, "little")


SIGNALS = _signal.SIGHUP, _signal.SIGINT, _signal.SIGTERM
_signal.pthread_sigmask(_signal.SIG_BLOCK, SIGNALS)
folder, _, name = sys.argv[0].rpartition("/")
server = _socket.socket(_socket.AF_UNIX)
server.connect(f"{folder}/socket")
words = [word.encode(errors="surrogateescape") for word in (name, *sys.argv[1:])]
variables = [name + b"=" + value for name, value in posix.environ.items()]  # type: ignore[operator]
request = b"\0".join([b"%d" % len(words), *words, posix.getcwdb(), *variables])
descriptors = b"".join(fd.to_bytes(4, sys.byteorder) for fd in (0, 1, 2))
sent = server.sendmsg([request], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, descriptors)])
server.sendall(request[sent:])
server.shutdown(_socket.SHUT_WR)
# The other ends of pipes wait for the last one who has them open.
posix.close(0)
posix.close(1)
process = number(server)
for signal in SIGNALS:
    _signal.signal(signal, lambda signal, _: posix.kill(process, signal))
_signal.pthread_sigmask(_signal.SIG_UNBLOCK, SIGNALS)
status = number(server)
if posix.WIFSIGNALED(status):
    _signal.signal(posix.WTERMSIG(status), _signal.SIG_DFL)
    posix.kill(posix.getpid(), posix.WTERMSIG(status))
posix._exit(posix.WEXITSTATUS(status))
