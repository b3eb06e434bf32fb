"""Serves S3 by moto on a port, in a process of its own (`s3_service`), as it is or behind a front of
`seaweedfs_front`.

moto looks whether a name is taken and then writes: one request at a time makes it atomic.
"""

import sys
import threading
from pathlib import Path


def _serve_moto(port: int, front: str) -> None:
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    from tests.support.processes.seaweedfs_front import AsSeaweedFS, Astray

    class Handler(WSGIRequestHandler):
        protocol_version = "HTTP/1.1"  # connections are kept

        def connection_dropped(self, error, environ=None):
            self.close_connection = True  # an answer is lost

    moto, one = DomainDispatcherApplication(create_backend_app), threading.Lock()

    inner = AsSeaweedFS(moto) if front else moto

    def app(environ, start_response):
        with one:
            return list(inner(environ, start_response))

    served = Astray(app, seed=1) if front == "astray" else app
    make_server("127.0.0.1", port, served, threaded=True, request_handler=Handler).serve_forever()


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[3]))
    _serve_moto(int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "")
