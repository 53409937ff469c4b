"""The client as a program, run inside the namespace of a workload.

It prints one JSON object. With `--hold` it keeps one connection open and sends its input line by line, which shows the
effect of load balancer changes on an established connection.
"""

import argparse
import socket
import sys
from collections.abc import Sequence

import msgspec

from fairlead.lab.client import CHUNK, InvalidReply, Protocol, Traffic, TrafficResult, classify, open_socket, send
from fairlead.lab.held_connection import CONNECTED_PREFIX, FAILED_PREFIX

__all__ = ["Protocol", "Traffic", "TrafficResult", "hold", "main", "send"]

EPILOG = """examples:
  python -m fairlead.lab.traffic --to 10.0.0.10 --port 80 --count 100
  python -m fairlead.lab.traffic --to fd00::10 --port 53 --protocol udp --count 500 --concurrency 20
  python -m fairlead.lab.traffic --to 10.0.0.10 --port 80 --count 1000 --source-port-from 20000 --keys
  echo hello | python -m fairlead.lab.traffic --to 10.0.0.10 --port 80 --hold
"""


def hold(traffic: Traffic) -> int:
    """Send each line of standard input and print its reply; an error of the connection ends the program."""
    try:
        with open_socket(traffic, traffic.source_port_from or 0) as client:
            client.settimeout(traffic.timeout)
            client.connect((traffic.to, traffic.port))
            print(CONNECTED_PREFIX, client.getsockname()[1], flush=True)
            for line in sys.stdin:
                print(_exchange_line(traffic, client, line), flush=True)
    except (OSError, InvalidReply) as error:
        print(FAILED_PREFIX, classify(error), flush=True)
        return 1
    return 0


def _exchange_line(traffic: Traffic, client: socket.socket, line: str) -> str:
    if traffic.protocol is Protocol.UDP:
        client.sendall(line.rstrip("\n").encode())
        return client.recv(CHUNK).decode()
    client.sendall(line.encode())
    answer = bytearray()
    while not answer.endswith(b"\n"):
        chunk = client.recv(CHUNK)
        if not chunk:
            raise ConnectionResetError
        answer += chunk
    return answer.decode().rstrip("\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m fairlead.lab.traffic",
        description="Send requests to a server of the lab, and print the names of the responding servers as JSON.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--to", required=True, metavar="ADDR", help="IPv4 or IPv6 address")
    parser.add_argument("--port", type=int, required=True, metavar="P")
    parser.add_argument("--protocol", type=Protocol, choices=list(Protocol), default=Protocol.TCP)
    parser.add_argument("--count", type=_parse_positive, default=1, metavar="N", help="number of requests (default: 1)")
    parser.add_argument(
        "--timeout", type=float, default=2.0, metavar="S", help="timeout of a request, in seconds (default: 2)"
    )
    parser.add_argument(
        "--concurrency", type=_parse_positive, default=1, metavar="C", help="concurrent requests (default: 1)"
    )
    parser.add_argument("--source-port-from", type=_parse_positive, metavar="P", help="use source ports P, P+1, ...")
    parser.add_argument(
        "--size", type=int, default=0, metavar="BYTES", help="size of a request; the server must return it"
    )
    parser.add_argument("--keys", action="store_true", help="print the responding server of each source port")
    parser.add_argument(
        "--hold", action="store_true", help="keep one connection open, and send the lines of standard input"
    )
    return parser


def _parse_positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected an integer of at least 1, got {text}")
    return number


def _traffic(arguments: argparse.Namespace) -> Traffic:
    return Traffic(
        to=arguments.to,
        port=arguments.port,
        protocol=arguments.protocol,
        count=arguments.count,
        timeout=arguments.timeout,
        concurrency=arguments.concurrency,
        source_port_from=arguments.source_port_from,
        size=arguments.size,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the client. Failed exchanges are part of the result; the exit code reports only an invalid or failed start,
    and a lost held connection."""
    arguments = _parser().parse_args(argv)
    traffic = _traffic(arguments)
    if arguments.hold:
        return hold(traffic)
    result = send(traffic) if arguments.keys else _without_keys(send(traffic))
    print(msgspec.json.encode(result).decode())
    return 0


def _without_keys(result: TrafficResult) -> TrafficResult:
    return TrafficResult(answers=result.answers, errors=result.errors, seconds=result.seconds)


if __name__ == "__main__":
    sys.exit(main())
