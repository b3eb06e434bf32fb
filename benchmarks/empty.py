"""The limit of everything that speaks HTTP here: an ASGI app that reads the body and answers, under the broker's own
server settings.

`POST /{n}` answers n bytes.
"""

import socket
from typing import Any

import uvicorn

from seaweedq.cli.server.broker_process import uvicorn_loop


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Read the body, answer as many bytes as the path says."""
    while (await receive()).get("more_body"):
        pass
    body = bytes(int(scope["path"][1:]))
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def main() -> None:
    """Serve until killed."""
    listener = socket.create_server(("127.0.0.1", 0))
    print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    config = uvicorn.Config(
        app,
        lifespan="off",
        access_log=False,
        log_config=None,
        timeout_keep_alive=75,
        http="httptools",
        ws="none",
        server_header=False,
        proxy_headers=False,
    )
    with uvicorn_loop() as runner:
        runner.run(uvicorn.Server(config).serve(sockets=[listener]))


if __name__ == "__main__":
    main()
