"""Calls to an etcd cluster: messages, endpoints, TLS, tokens, timeouts, the meaning of errors. Knows nothing of keys.

The messages are those of the etcd3 package. Its generated modules are older than today's protobuf, which runs them only
in its pure Python implementation, and the choice of an implementation is one for the whole process. So none of these
modules is imported: the description of the messages, which each contains as one literal, is handed to protobuf, which
makes the classes anew (decision 0013).

Each endpoint has a channel of its own, and one endpoint is current. When it fails to answer, or has not answered for
SLOW_S, the next one becomes current. A call is repeated there only if it may happen twice. Calls run in gRPC's threads
and return to the calling loop, whichever it is; nothing here ever blocks a loop.
"""

import ast
import asyncio
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc

from seaweedq.errors import CoordinationUnavailable
from seaweedq.extras import install_command

FILES = ("kv", "auth", "rpc")  # each behind those that it imports
_DESCRIPTION = re.compile(r"^  serialized_pb=_b\(('.*')\)", re.MULTILINE)
Metadata = tuple[tuple[str, str], ...]
WATCH = "/etcdserverpb.Watch/Watch"
OPTIONS = (
    # A dead connection is found by pings. etcd takes one each 5 s at most (--grpc-keepalive-min-time).
    ("grpc.keepalive_time_ms", 5_500),
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.http2.ping_timeout_ms", 3_000),  # without it gRPC 1.85 waits a minute whatever the line above says
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.min_reconnect_backoff_ms", 5_000),  # it is the time limit of one attempt to connect
    ("grpc.max_receive_message_length", -1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
)
SLOW_S = 1.0
SILENT = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.INTERNAL,
}
STALE_TOKEN = ("invalid auth token", "revision of auth store is old")


def load_messages() -> Any:
    """Returns etcd's messages as classes of today's protobuf. Raises ModuleNotFoundError without etcd3, ImportError if
    its modules have another form."""
    found = find_spec("etcd3")
    if found is None or not found.submodule_search_locations:
        raise ModuleNotFoundError(f"coordination through etcd needs more packages: {install_command('etcd')}")
    from google.protobuf import descriptor_pool, message_factory

    pool = descriptor_pool.DescriptorPool()  # a pool of its own: other packages have files with such names, too
    for name in FILES:
        pool.AddSerializedFile(_description(Path(found.submodule_search_locations[0], "etcdrpc", f"{name}_pb2.py")))
    kinds = pool.FindFileByName("rpc.proto").message_types_by_name
    return SimpleNamespace(**{name: message_factory.GetMessageClass(kind) for name, kind in kinds.items()})


def _description(module: Path) -> bytes:
    """Returns the serialized FileDescriptorProto that a generated module contains."""
    literal = _DESCRIPTION.search(module.read_text("utf-8"))
    if literal is None:
        raise ImportError(
            f"{module} does not contain etcd's message definitions in the form that etcd3 0.12 uses; install etcd3 0.12"
        )
    return str(ast.literal_eval(literal[1])).encode("latin-1")


rpc = load_messages()


# KeepAlive is a stream of both directions in etcd; one request and its one answer are a call like the others.
METHODS = {
    rpc.RangeRequest: ("/etcdserverpb.KV/Range", rpc.RangeResponse),
    rpc.TxnRequest: ("/etcdserverpb.KV/Txn", rpc.TxnResponse),
    rpc.LeaseGrantRequest: ("/etcdserverpb.Lease/LeaseGrant", rpc.LeaseGrantResponse),
    rpc.LeaseKeepAliveRequest: ("/etcdserverpb.Lease/LeaseKeepAlive", rpc.LeaseKeepAliveResponse),
    rpc.LeaseRevokeRequest: ("/etcdserverpb.Lease/LeaseRevoke", rpc.LeaseRevokeResponse),
    rpc.AuthenticateRequest: ("/etcdserverpb.Auth/Authenticate", rpc.AuthenticateResponse),
}


class LeaseNotFound(Exception):
    """A call named a lease that has ended."""


@dataclass(frozen=True, slots=True)
class Access:
    """How to reach a cluster: endpoints as `host:port`, and PEM files and a user if they are not empty."""

    endpoints: Sequence[str]
    user: str = ""
    password: str = ""
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""

    def credentials(self) -> Any:
        """Returns gRPC's credentials, or None without a CA. Raises OSError for files that cannot be read."""
        if not self.ca_file:
            return None
        pems = [Path(file).read_bytes() if file else None for file in (self.ca_file, self.key_file, self.cert_file)]
        return grpc.ssl_channel_credentials(*pems)


class Endpoint:
    """One address, its channel and the calls that can be made on it."""

    def __init__(self, address: str, credentials: Any) -> None:
        self.address = address
        self._channel = (
            grpc.secure_channel(address, credentials, OPTIONS)
            if credentials
            else grpc.insecure_channel(address, OPTIONS)
        )
        self._calls = {kind: self._channel.unary_unary(path, *_codec(kind, to)) for kind, (path, to) in METHODS.items()}
        self._watch = self._channel.unary_stream(WATCH, *_codec(rpc.WatchRequest, rpc.WatchResponse))

    async def call(self, request: Any, timeout_s: float, metadata: Metadata) -> Any:
        """Sends a request and returns the answer. Raises grpc.RpcError; cancelling the task cancels the call."""
        loop = asyncio.get_running_loop()
        done = asyncio.Event()
        call = self._calls[type(request)].future(request, timeout_s, metadata)
        call.add_done_callback(lambda _: _wake(loop, done))
        try:
            await done.wait()
        finally:
            call.cancel()
        return call.result()

    def watch(self, request: Any, metadata: Metadata) -> Any:
        """Opens a watch. Iterating the answers blocks, and raises grpc.RpcError; `cancel()` ends them."""
        return self._watch(request, metadata=metadata)

    def close(self) -> None:
        """Ends all calls."""
        self._channel.close()


class Transport:
    """Calls at the current endpoint. `timeout_s` bounds each call, over all endpoints that are tried."""

    def __init__(self, access: Access, timeout_s: float) -> None:
        if not access.endpoints:
            raise ValueError("coordination on etcd needs at least one endpoint of the form host:port")
        credentials = access.credentials()
        self._access = access
        self._timeout_s = timeout_s
        self._endpoints = [Endpoint(address, credentials) for address in access.endpoints]
        self._current = 0
        self._token = ""
        self.closed = False

    @property
    def endpoint(self) -> Endpoint:
        """Returns the current endpoint."""
        return self._endpoints[self._current]

    async def call(self, request: Any, *, repeat: bool = True) -> Any:
        """Sends a request and returns the answer; `repeat`: it may happen twice. Raises CoordinationUnavailable (it may
        have happened), LeaseNotFound (it has not)."""
        self.check_open()
        endpoint, tries = self.endpoint, len(self._endpoints)
        try:
            async with asyncio.timeout(self._timeout_s):
                while True:
                    endpoint, tries = self.endpoint, tries - 1
                    try:
                        return await self._send_patiently(endpoint, request)
                    except grpc.RpcError as error:
                        self._judge(error, endpoint, again=repeat and tries > 0)
        except TimeoutError:
            self.blame(endpoint)
            raise unavailable(f"etcd at {endpoint.address} did not answer within {self._timeout_s} s") from None

    async def metadata(self, endpoint: Endpoint) -> Metadata:
        """Returns the metadata of each call: a member without a leader must refuse it, and the user's token."""
        if self._access.user and not self._token:
            request = rpc.AuthenticateRequest(name=self._access.user, password=self._access.password)
            self._token = (await self._send(endpoint, request, ())).token
        token = (("token", self._token),) if self._token else ()
        return (("hasleader", "true"), *token)

    def refresh(self, metadata: Metadata) -> None:
        """Discards the token, so that the next call gets a new one, unless that has happened since `metadata` was
        used."""
        if ("token", self._token) in metadata:
            self._token = ""

    def blame(self, endpoint: Endpoint) -> None:
        """Makes the next endpoint current, unless another one is current already."""
        if endpoint is self.endpoint:
            self._current = (self._current + 1) % len(self._endpoints)

    def check_open(self) -> None:
        """Raises CoordinationUnavailable once closed."""
        if self.closed:
            raise CoordinationUnavailable("this broker has closed its connection to coordination")

    def close(self) -> None:
        """End all calls; those under way fail."""
        self.closed = True
        for endpoint in self._endpoints:
            endpoint.close()

    async def _send_patiently(self, endpoint: Endpoint, request: Any) -> Any:
        """Sends a request, with another token if etcd does not take this one any more. An endpoint that is slow gets no
        further requests, but its answer is waited for: all may be slow."""
        late = asyncio.get_running_loop().call_later(SLOW_S, self.blame, endpoint)
        try:
            metadata = await self.metadata(endpoint)
            try:
                return await self._send(endpoint, request, metadata)
            except grpc.RpcError as error:
                if not (self._access.user and stale_token(error.details())):
                    raise
            self.refresh(metadata)  # etcd has refused the call, so that it can be made again
            return await self._send(endpoint, request, await self.metadata(endpoint))
        finally:
            late.cancel()

    async def _send(self, endpoint: Endpoint, request: Any, metadata: Metadata) -> Any:
        self.check_open()
        return await endpoint.call(request, self._timeout_s, metadata)

    def _judge(self, error: Any, endpoint: Endpoint, again: bool) -> None:
        """Raises the error of a failed call, unless it is to be made again at the next endpoint."""
        self.check_open()
        if error.code() in SILENT:
            self.blame(endpoint)
        if not (again and error.code() is grpc.StatusCode.UNAVAILABLE):
            raise meaning(error, endpoint) from error


def stale_token(details: str | None) -> bool:
    """Tells whether etcd's error means that a new token would help."""
    return any(sign in (details or "") for sign in STALE_TOKEN)


def unavailable(inside: str) -> CoordinationUnavailable:
    """Returns the error for users; `inside` is for the log alone."""
    return CoordinationUnavailable(
        "coordination (etcd) does not answer, or refuses the request; the broker's log has the reason", inside=inside
    )


def meaning(error: Any, endpoint: Endpoint) -> Exception:
    """Translates an RpcError into an error of this project."""
    if error.code() is grpc.StatusCode.NOT_FOUND and "lease" in (error.details() or ""):
        return LeaseNotFound(error.details())
    return unavailable(f"etcd at {endpoint.address}: {error.code().name}: {error.details()}")


def _codec(request: Any, response: Any) -> Any:
    return request.SerializeToString, response.FromString


def _wake(loop: asyncio.AbstractEventLoop, done: asyncio.Event) -> None:
    with suppress(RuntimeError):  # the loop has gone, and its tasks
        loop.call_soon_threadsafe(done.set)
