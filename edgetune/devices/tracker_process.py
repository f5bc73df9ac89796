"""A TVM RPC tracker as a process: ``python -m edgetune.devices.tracker_process``.

Prints ``{"port": N}`` on standard output when it listens.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import socket
import sys
import threading
from collections.abc import Callable


def serve(host: str, port: int, announce: Callable[[int], None], *, with_owner: bool = False) -> None:
    """Run a tracker until the process is killed.

    Args:
        host: address to listen on.
        port: 0 for any free one.
        announce: is told the port as soon as connections are accepted.
        with_owner: serve one process, end as soon as standard input closes, and tell nobody which keys there
            are: whoever does not know a device's key can lease nothing, other users of this machine least of all.

    Raises:
        OSError: the address cannot be listened on.
    """
    # The tracker needs no compiler, and starts sooner without.
    os.environ.setdefault("TVM_USE_RUNTIME_LIB", "1")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, port), family=family)
    if with_owner:
        threading.Thread(target=_end_with_owner, daemon=True).start()
    # Before TVM's slow import: connections wait in the socket's queue meanwhile.
    announce(listener.getsockname()[1])
    from tvm.rpc import base, tracker

    tracker.logger.setLevel(logging.ERROR)
    asyncio.set_event_loop(asyncio.new_event_loop())
    handler = tracker.TrackerServerHandler(listener, base.random_key("tracker"))
    if with_owner:
        # TVM's answers anybody who asks with every key that is registered.
        handler.summary = lambda: {"queue_info": {}, "server_info": []}
    handler.run()


def _end_with_owner() -> None:
    while os.read(sys.stdin.fileno(), 1024):
        pass
    os._exit(0)


def _print_port(port: int) -> None:
    print(json.dumps({"port": port}), flush=True)


def main() -> None:
    """Read the command line and serve."""
    parser = argparse.ArgumentParser(description="A TVM RPC tracker.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--with-owner", action="store_true")
    args = parser.parse_args()
    serve(args.host, args.port, _print_port, with_owner=args.with_owner)


if __name__ == "__main__":
    main()
