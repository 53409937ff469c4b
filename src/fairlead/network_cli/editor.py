"""A text in the caller's own editor, until it is accepted or given up."""

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from fairlead.network_cli.failure import Failure
from fairlead.terminal import complain

HELP = """### This is a YAML description of the load balancer. Lines that begin with '#' are ignored.
###
### description: for people
### config:
###   user.mykey: my value
### backends:
### - name: web1
###   description: for people
###   target_address: 10.1.0.2      an address of the network
###   target_port: 80,81,8080-8090  one port for all, or as many as the port has that leads here; "": the same port
### ports:
### - description: for people
###   protocol: tcp                 or udp
###   listen_port: 80,81,8080-8090
###   target_backend:
###   - web1
###
### listen_address and location are shown only.
"""
EDITORS = ("editor", "vi", "emacs", "nano")


def edit(text: str, accept: Callable[[str], None]) -> None:
    """`accept` raises Failure for what it refuses: then the caller may go on editing. Raises Failure."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "load-balancer.yaml"
        file.write_text(text)
        while True:
            _run(file)
            try:
                return accept(file.read_text())
            except Failure as refused:
                complain(*f"Config parsing error: {refused}".split("\n"))
                complain("Press enter to open the editor again or ctrl+c to abort change")
                if not sys.stdin.readline():
                    raise


def _run(file: Path) -> None:
    chosen = os.environ.get("VISUAL") or os.environ.get("EDITOR") or next(filter(shutil.which, EDITORS), "")
    if not chosen:
        raise Failure("No text editor found, please set the EDITOR environment variable")
    try:
        subprocess.run([*shlex.split(chosen), str(file)], check=True)
    except (OSError, ValueError, subprocess.CalledProcessError) as error:
        raise Failure(f"{chosen}: {error}") from None
