"""moto's S3 server on a loopback port, as the limit and the store of a cluster under measurement.

moto looks whether a name is taken and then writes: one request at a time makes a create atomic.
"""

import sys
import threading
import time
from collections.abc import Iterable
from typing import Any

from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server


class _Handler(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"  # connections are kept


def main() -> None:
    """Serve for ever."""
    moto, one = DomainDispatcherApplication(create_backend_app), threading.Lock()
    get_s = float(sys.argv[2])

    def app(environ: Any, start_response: Any) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] == "GET":
            time.sleep(get_s)
        with one:
            return list(moto(environ, start_response))

    make_server("127.0.0.1", int(sys.argv[1]), app, threaded=True, request_handler=_Handler).serve_forever()


if __name__ == "__main__":
    main()
