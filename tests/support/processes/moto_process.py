"""Serves S3 by moto on a port, in a process of its own (`s3_service`).

moto looks whether a name is taken and then writes: one request at a time makes it atomic.
"""

import sys
import threading


def _serve_moto(port: int) -> None:
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Handler(WSGIRequestHandler):
        protocol_version = "HTTP/1.1"  # connections are kept

    moto, one = DomainDispatcherApplication(create_backend_app), threading.Lock()

    def app(environ, start_response):
        with one:
            return list(moto(environ, start_response))

    make_server("127.0.0.1", port, app, threaded=True, request_handler=Handler).serve_forever()


if __name__ == "__main__":
    _serve_moto(int(sys.argv[1]))
