"""The TCP proxy carries bytes, and does to a link what it is told, in front of a server that answers each line."""

import asyncio
import gc
import socket
import socketserver
import sys
import threading
import time
from contextlib import closing

import pytest

from tests.support.history.load import until
from tests.support.processes.proxy_process import ProxyProcess
from tests.support.processes.tcp_proxy import LoopThread, TcpProxy, listen_no_more

SHORT_S, WITHIN_S = 0.3, 30.0


class Echo(socketserver.StreamRequestHandler):
    def handle(self):
        for line in self.rfile:
            self.server.heard.append(line)
            self.wfile.write(line)


@pytest.fixture
def server():
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Echo) as server:
        server.heard = []
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def link(server):
    thread = LoopThread()
    with closing(thread):
        proxy = TcpProxy(thread, f"127.0.0.1:{server.server_address[1]}").start()
        yield proxy
        proxy.stop()


def connected(link):
    return socket.create_connection(("127.0.0.1", link.port), timeout=WITHIN_S)


def asked(connection, line):
    connection.sendall(line)
    return connection.recv(100)


def asked_in_vain(connection, line):
    connection.settimeout(SHORT_S)
    with pytest.raises(TimeoutError):
        asked(connection, line)
    connection.settimeout(WITHIN_S)


def time_of_asking_s(connection, line):
    began = time.monotonic()
    assert asked(connection, line) == line
    return time.monotonic() - began


def test_it_carries_both_ways_and_ends_with_its_client(link):
    with connected(link) as connection:
        assert asked(connection, b"a\n") == b"a\n"
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(100) == b""


def test_refused_connections_end_and_no_new_one_comes_until_it_heals(link):
    with connected(link) as connection:
        asked(connection, b"a\n")
        link.cut("refuse")
        with pytest.raises(ConnectionResetError):
            connection.recv(100)
    with pytest.raises(ConnectionRefusedError):
        connected(link)
    link.heal()
    with connected(link) as connection:
        assert asked(connection, b"b\n") == b"b\n"


def test_a_connection_that_has_ended_by_itself_meanwhile_can_be_refused(link):
    with connected(link) as connection:
        asked(connection, b"a\n")
        for writer in link.writers:
            writer.get_extra_info("socket")._sock.close()
        link.cut("refuse")
    link.heal()
    with connected(link) as connection:
        assert asked(connection, b"b\n") == b"b\n"


@pytest.mark.parametrize(("how", "heard"), [("to", []), ("both", []), ("from", [b"b\n"])])
def test_a_hole_swallows_one_way_or_both_and_gives_back_what_it_held(link, server, how, heard):
    with connected(link) as connection:
        asked(connection, b"a\n")
        server.heard.clear()
        link.cut(how)
        asked_in_vain(connection, b"b\n")
        until(lambda: server.heard == heard)
        link.heal()
        assert connection.recv(100) == b"b\n"


def test_a_delay_is_a_delay(link):
    link.delay(1.2)
    with connected(link) as connection:
        assert time_of_asking_s(connection, b"a\n") >= 2.4
        link.heal()
        assert min(time_of_asking_s(connection, b"b\n") for _ in range(3)) < 1.2  # neither way has a delay


@pytest.mark.process
def test_a_proxy_in_a_process_of_its_own_does_the_same(server):
    with closing(ProxyProcess()) as process:
        link = process.link(f"127.0.0.1:{server.server_address[1]}").start()
        with connected(link) as connection:
            assert asked(connection, b"a\n") == b"a\n"
            link.cut("from")
            asked_in_vain(connection, b"b\n")
            link.heal()
            assert connection.recv(100) == b"b\n"
            assert process.late_s() >= 0
        link.stop()
        with pytest.raises(ConnectionRefusedError):
            connected(link)


def test_a_dead_server_ends_the_connection(link, server):
    server.server_close()
    with connected(link) as connection:
        assert connection.recv(100) == b""


def test_what_comes_in_the_turn_of_the_close_is_closed_too(monkeypatch):
    unraised = []
    gc.collect()  # what other tests have left
    monkeypatch.setattr(sys, "unraisablehook", unraised.append)
    accepted = []

    async def close_amid_connections():
        server = await asyncio.start_server(lambda reader, writer: accepted.append(writer), "127.0.0.1", 0)
        clients = [socket.create_connection(server.sockets[0].getsockname()) for _ in range(3)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await listen_no_more(server)
        for end in (*clients, *accepted):
            end.close()

    with closing(LoopThread()) as thread:
        thread.run(close_amid_connections())
    gc.collect()
    assert len(accepted) == 3
    assert unraised == []
