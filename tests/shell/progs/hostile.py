# SPDX-License-Identifier: MIT
"""hostile.py RUNTIME_DIR WHAT: a client of the agent that does not keep to shim/wire.h."""
import os
import re
import socket
import struct
import sys

WIRE = open(os.path.dirname(os.path.abspath(__file__)) + "/../../../shim/wire.h").read()
MAGIC, VERSION = 0x6B434C44, int(re.search(r"#define WIRE_VERSION (\d+)", WIRE).group(1))
REQUEST, HELD, TAKE, DONE, CANCEL, STANDS, RULES, QUERY, GETLK = 1, 2, 3, 4, 5, 6, 7, 8, 9
FLOCK, POSIX, OFD = 1, 2, 3
GO, BUSY, ERROR, LOCK = 32, 35, 37, 42


def message(kind, text=b"", magic=MAGIC, version=VERSION, text_len=None, mode=2, flags=1, stamp=0, family=FLOCK, start=0, length=0):
    return struct.pack("<IHHHHIiiqqQQQII", magic, version, kind, family, mode, flags, 0, 3, start, length, 0, 0, stamp, os.getpid(),
                       len(text) if text_len is None else text_len) + text


def connect(directory):
    client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    client.settimeout(10)
    client.connect(directory + "/agent.sock")
    return client


def send(client, data, fds=()):
    try:
        if fds:
            socket.send_fds(client, [data], list(fds))
        else:
            client.send(data)
        return client.recv(70000)
    except (BrokenPipeError, ConnectionResetError, TimeoutError):
        return b""


def garbage(directory):
    for size in (0, 1, 4, 71, 72, 73, 500, 65000):
        send(connect(directory), os.urandom(size) or b"\0")


def malformed(directory):
    for data in (message(QUERY, magic=1), message(QUERY, version=9), message(QUERY, text_len=60000), message(QUERY, b"ping")[:40],
                 message(99), message(0), message(HELD), message(TAKE), message(DONE), message(QUERY), message(QUERY, b"\0\0\0"),
                 message(QUERY, b"nonsense " + b"x" * 60000), message(QUERY, b"check " + b"/" * 60000), message(QUERY, b"check relative")):
        send(connect(directory), data)


def without_descriptor(directory):
    reply = send(connect(directory), message(REQUEST))
    print("answered" if len(reply) >= 72 else "closed")


def many_descriptors(directory):
    files = [os.open(sys.argv[3], os.O_RDWR | os.O_CREAT) for _ in range(100)]
    for count in (2, 3, 100):
        for data in (message(QUERY, b"ping"), message(DONE), message(REQUEST, mode=9)):
            send(connect(directory), data, files[:count])


def states(directory):
    """Each message in each state of a call."""
    path = sys.argv[3]
    for second in (REQUEST, HELD, TAKE, DONE, CANCEL, STANDS, RULES, QUERY, 77):
        for mode in (0, 1, 2, 9, 255):
            file = os.open(path, os.O_RDWR | os.O_CREAT)
            client = connect(directory)
            client.settimeout(0.05)
            send(client, message(REQUEST, mode=mode), [file])
            send(client, message(second, mode=mode))
            os.close(file)


def kind_of(reply):
    return struct.unpack_from("<H", reply, 6)[0] if len(reply) >= 72 else 0


def bad_ranges(directory):
    """Ranges that no program can ask for; each must be refused, and the agent must not take any of them for another."""
    file = os.open(sys.argv[3], os.O_RDWR | os.O_CREAT)
    top = 2 ** 63 - 1
    bad = 0
    for family, start, length in ((POSIX, -1, 1), (OFD, -(2 ** 63), 1), (POSIX, 0, -1), (OFD, 10, -(2 ** 63)), (POSIX, top, 2),
                                  (OFD, top, top), (POSIX, 2, top), (FLOCK, 0, 1), (FLOCK, 1, 0), (0, 0, 1), (4, 0, 1), (0xffff, 0, 0)):
        for kind in (REQUEST, STANDS, GETLK):
            bad += kind_of(send(connect(directory), message(kind, family=family, start=start, length=length), [file])) != ERROR
    bad += kind_of(send(connect(directory), message(GETLK, family=FLOCK), [file])) != ERROR
    bad += kind_of(send(connect(directory), message(GETLK, family=POSIX, flags=2), [file])) != ERROR
    bad += kind_of(send(connect(directory), message(REQUEST, family=OFD, mode=3), [file])) != ERROR
    print("refused" if not bad else "taken: %d" % bad)


def record_states(directory):
    """Each message in each state of a call for a range; what the client says of itself is a lie."""
    file = os.open(sys.argv[3], os.O_RDWR | os.O_CREAT)
    for family in (POSIX, OFD):
        for flags in (0, 1):
            for second in (REQUEST, HELD, TAKE, DONE, CANCEL, STANDS, RULES, QUERY, GETLK, 77):
                for mode in (0, 1, 2, 9, 255):
                    client = connect(directory)
                    client.settimeout(0.02)
                    send(client, message(REQUEST, family=family, flags=flags, start=3, length=9), [file])
                    for _ in range(2):
                        send(client, message(second, family=family, mode=mode, flags=flags, start=7, length=1))


def getlk_flood(directory):
    import resource
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
    file = os.open(sys.argv[3], os.O_RDWR | os.O_CREAT)
    clients = [connect(directory) for _ in range(500)]
    for i, client in enumerate(clients):
        socket.send_fds(client, [message(GETLK, family=POSIX, start=i, length=0)], [file])
    kinds = [0]
    for client in clients[250:]:
        try:
            kinds.append(kind_of(client.recv(70000)))
        except OSError:
            pass
    print("answered", sum(kind in (LOCK, ERROR) for kind in kinds))


def never_reads(directory):
    clients = []
    for _ in range(20):
        client = connect(directory)
        client.setblocking(False)
        try:
            for _ in range(2000):
                client.send(message(QUERY, b"status"))
        except (BlockingIOError, BrokenPipeError, ConnectionResetError):
            pass
        clients.append(client)
    print("stuck", flush=True)
    sys.stdin.readline()


def silent(directory):
    import resource
    resource.setrlimit(resource.RLIMIT_NOFILE, (2048, 2048))
    clients = []
    for _ in range(1000):
        clients.append(connect(directory))
    print("stuck", flush=True)
    sys.stdin.readline()


def thousand(directory):
    import resource
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
    clients = []
    for _ in range(1000):
        client = connect(directory)
        client.send(message(QUERY, b"ping"))
        clients.append(client)
    answered = 0
    for client in clients:
        try:
            answered += len(client.recv(70000)) >= 72
        except OSError:
            pass
    print("answered", answered)


globals()[sys.argv[2]](sys.argv[1])
