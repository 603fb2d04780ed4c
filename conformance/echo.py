#!/usr/bin/env python3
"""A server that sends back what it gets, and its clients: asyncio, poll, select, blocking calls.

echo.py serve ADDRESS PORT
echo.py ask ADDRESS PORT

Knows nothing of RDMA. The clients check every byte; the server ends after the last of them.
"""

import asyncio
import select
import socket
import sys
import threading

CLIENTS = 4 + 3  # asyncio's and the others
SIZES = [1, 100, 4096, 65536, 1 << 20]


def message(seed, size):
    return bytes((seed + i * 7) & 0xFF for i in range(251)) * (size // 251 + 1)


async def serve(address, port):
    served = 0
    done = asyncio.Event()

    async def echo(reader, writer):
        nonlocal served
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
        writer.close()
        await writer.wait_closed()
        served += 1
        if served == CLIENTS:
            done.set()

    server = await asyncio.start_server(echo, address, port)
    await done.wait()
    server.close()
    await server.wait_closed()
    print(f"served {served} clients")


async def ask_async(address, port, seed):
    reader, writer = await asyncio.open_connection(address, port)
    total = 0
    for size in SIZES:
        sent = message(seed, size)[:size]
        writer.write(sent)
        assert await reader.readexactly(size) == sent, f"asyncio: {size} bytes came back changed"
        total += size
    writer.write_eof()
    assert await reader.read() == b"", "asyncio: more came than was sent"
    writer.close()
    return total


def wait_by_select(sock, write):
    readable, writable, _ = select.select([sock], [sock] if write else [], [], 20)
    assert readable or writable, "select: nothing for 20 s"
    return bool(readable), bool(writable)


def wait_by_poll(sock, write):
    poll = select.poll()
    poll.register(sock, select.POLLIN | (select.POLLOUT if write else 0))
    found = poll.poll(20_000)
    assert found, "poll: nothing for 20 s"
    events = found[0][1]
    return bool(events & (select.POLLIN | select.POLLHUP)), bool(events & select.POLLOUT)


def ask_nonblocking(address, port, wait, seed):
    """Connects without waiting, then sends and receives whenever it can."""
    sock = socket.socket(family(address), socket.SOCK_STREAM)
    sock.setblocking(False)
    sock.connect_ex((address, port))
    while not wait(sock, True)[1]:
        pass
    error = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    assert error == 0, f"connect: errno {error}"
    sent = message(seed, 1 << 20)
    left, came = memoryview(sent), bytearray()
    while len(came) < len(sent):
        readable, writable = wait(sock, len(left) > 0)
        if writable and left:
            left = left[sock.send(left) :]
        if readable:
            data = sock.recv(1 << 16)
            assert data, "the server ended early"
            came += data
    assert came == sent, "bytes came back changed"
    sock.close()
    return len(came)


def ask_blocking(address, port):
    """One thread sends, this one receives."""
    with socket.create_connection((address, port), timeout=20) as sock:
        sent = message(9, 3 << 20)
        sender = threading.Thread(target=lambda: (sock.sendall(sent), sock.shutdown(socket.SHUT_WR)))
        sender.start()
        came = bytearray()
        while data := sock.recv(1 << 16):
            came += data
        sender.join()
        assert came == sent, "bytes came back changed"
        return len(came)


def family(address):
    return socket.AF_INET6 if ":" in address else socket.AF_INET


async def ask(address, port):
    clients = [ask_async(address, port, seed) for seed in range(4)]
    total = sum(await asyncio.gather(*clients))
    total += ask_nonblocking(address, port, wait_by_select, 5)
    total += ask_nonblocking(address, port, wait_by_poll, 6)
    total += ask_blocking(address, port)
    print(f"{total} bytes came back as they were sent")


if __name__ == "__main__":
    role, address, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
    asyncio.run(serve(address, port) if role == "serve" else ask(address, port))
