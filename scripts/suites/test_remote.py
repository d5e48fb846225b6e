#!/usr/bin/env python3
"""Tests that a dump in a remote store is read as the same files on disk.

    python scripts/suites/test_remote.py [--command target/debug/firstdiff] [--prepare]

Starts servers that other people wrote, on this machine: S3 (moto), the same as Google Cloud Storage, whose XML interface is S3's, WebDAV (WsgiDAV), a web server with byte ranges
(rangehttpserver) and one without (Python's). Puts golden dumps and a faulty one there, and compares as a user would; the report must be the one of the files, byte for
byte but for the paths. Then what is not there, is cut, or does not answer. Exit code 1 where something is not as it should be.

The command is one with the feature `remote`: cargo build -p firstdiff --features remote. The servers are kept in
${XDG_CACHE_HOME:-~/.cache}/firstdiff-remote-HASH, from requirements/remote.txt (PyPI, on first use; --prepare does this alone). Requirements: none
"""

import argparse
import contextlib
import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
import venv
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from scripts import FIXTURES, ROOT, SCRIPTS
from scripts.release.wheel.checks import check, end

REQUIREMENTS = SCRIPTS / "requirements" / "remote.txt"

BUCKET = "runs"
# Nothing of the machine's own accounts.
ENVIRONMENT = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "GOOGLE_", "STORAGE_", "http_", "https_"))}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--command", type=Path, default=ROOT / "target/debug/firstdiff")
    p.add_argument("--only", nargs="*", help="these servers alone")
    p.add_argument("--prepare", action="store_true", help="only fetch the servers from PyPI")
    a = p.parse_args()
    python = prepare()
    if a.prepare:
        return
    command = a.command.resolve()
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        files(work / "files")
        for name, serve in SERVERS.items():
            if a.only and name not in a.only:
                continue
            print(f"{name}:", flush=True)
            start = time.monotonic()
            with serve(python, work) as (address, environment):
                same(command, work / "files", address, environment)
                faults(command, work / "files", address, environment, lists=name not in ("ranges", "whole files"))
            print(f"  {time.monotonic() - start:.1f} s")
        print("no server:")
        dead = f"http://127.0.0.1:{port()}/run"
        start = time.monotonic()
        code, out = run(command, {}, "compare", dead, work / "files/golden")
        check("refused, with the address", code == 2 and dead in out, out)
        check("within half a minute", time.monotonic() - start < 30)
    end()


def prepare():
    place = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    place /= f"firstdiff-remote-{hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()[:12]}"
    python = place / "bin/python"
    if not (place / "ready").exists():
        shutil.rmtree(place, ignore_errors=True)
        venv.create(place, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "-r", REQUIREMENTS], check=True)
        (place / "ready").touch()
    return python


def files(folder):
    """Golden and faulty, the program beside the golden one left out as it is in a store; and archives of them."""
    shutil.copytree(FIXTURES / "golden/llama-torch", folder / "golden")
    shutil.copytree(FIXTURES / "faulty/llama-rope-pairing", folder / "faulty")
    shutil.copy(FIXTURES / "faulty/minimind-mask-omitted.npz", folder / "minimind.npz")
    (folder / "one").mkdir()
    shutil.copy(FIXTURES / "faulty/minimind-mask-omitted.npz", folder / "one/run.npz")
    # Without a list of taps: what is there counts, where the server tells it.
    shutil.copytree(FIXTURES / "faulty/llama-rope-pairing", folder / "unlisted")
    meta = json.loads((folder / "unlisted/dump.json").read_text())
    meta.pop("taps", None)
    (folder / "unlisted/dump.json").write_text(json.dumps(meta))
    # A large one of random bytes as f32, of which one value differs.
    import array
    import random
    values = array.array("f", random.Random(5).choices([i / 977 - 0.5 for i in range(977)], k=9 << 20 >> 2))
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (3, %d), }" % (3 << 18)
    header = header.ljust(117) + b"\n"
    for name in ("large", "large-wrong"):
        (folder / name).mkdir()
        for tap in ("h0", "layers.0.h"):
            if (name, tap) == ("large-wrong", "layers.0.h"):
                values[2 << 20] += 7
            (folder / name / f"{tap}.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + values.tobytes())
        (folder / name / "dump.json").write_text(json.dumps({"format": 1, "tokens": [1, 2, 3], "taps": [{"tap": "h0"}, {"tap": "layers.0.h"}]}))
    (folder / "cut").mkdir()
    for file in (folder / "golden").iterdir():
        shutil.copy(file, folder / "cut" / file.name)
    longest = max((folder / "cut").glob("*.npy"), key=lambda file: file.stat().st_size)
    longest.write_bytes(longest.read_bytes()[:-4])


def same(command, here, address, environment):
    """The same report from there as from here."""
    pairs = [("golden", "faulty"), ("golden", "golden"), ("golden", "unlisted"), ("large", "large-wrong")]
    for reference, candidate in pairs:
        expected = report(command, {}, here / reference, here / candidate)
        for of_reference, of_candidate in ((here / reference, f"{address}/{candidate}"), (f"{address}/{reference}", f"{address}/{candidate}")):
            if candidate == "unlisted" and not_told(address):
                continue
            given = report(command, environment, of_reference, of_candidate)
            both = " and ".join(str(path).replace(str(here), "here") for path in (of_reference, of_candidate))
            check(both, given == expected, f"{first_difference(expected, given)}")
    _, expected = run(command, {}, "show", here / "minimind.npz")
    code, given = run(command, environment, "show", f"{address}/minimind.npz")
    check("a .npz", code == 0 and given.splitlines()[-8:] == expected.splitlines()[-8:], given)
    if not not_told(address):
        code, given = run(command, environment, "show", f"{address}/one/")
        check("the one archive of a folder", code == 0 and given.splitlines()[-8:] == expected.splitlines()[-8:], given)
    code, out = run(command, environment, "compare", here / "golden", f"{address}/faulty", "--part", "1/2", "-o", here / "1.part")
    code2, out2 = run(command, environment, "compare", here / "golden", f"{address}/faulty", "--part", "2/2", "-o", here / "2.part")
    code3, _ = run(command, environment, "join", here / "1.part", here / "2.part")
    check("in parts", (code, code2, code3) == (0, 0, 1), out + out2)


def not_told(address):
    return address.startswith("http://127.0.0.1") and "/dav" not in address


def faults(command, here, address, environment, lists):
    code, out = run(command, environment, "compare", here / "golden", f"{address}/nowhere")
    check("a folder that is not there is refused", code == 2 and f"{address}/nowhere" in out, out)
    code, out = run(command, environment, "compare", here / "golden", f"{address}/cut")
    check("a file that is cut is refused", code == 2 and "the file holds" in out, out)
    code, out = run(command, environment, "show", f"{address}/nowhere.npz")
    check("an archive that is not there is refused", code == 2 and "nowhere.npz" in out, out)
    if not lists:
        code, out = run(command, environment, "compare", here / "golden", f"{address}/unlisted")
        check("a server that does not tell its files needs a list of taps", code == 2 and "does not tell which files" in out, out)


def report(command, environment, reference, candidate):
    """The JSON, without the paths."""
    code, out = run(command, environment, "compare", reference, candidate, "--json", "-")
    if code not in (0, 1):
        return out
    report = json.loads(out)
    return {key: value for key, value in report.items() if key not in ("reference", "candidate")} | {"code": code}


def first_difference(expected, given):
    if isinstance(given, str):
        return given
    keys = [key for key in expected if given.get(key) != expected[key]]
    return f"{keys[0]}: {str(given.get(keys[0]))[:200]}, not {str(expected[keys[0]])[:200]}" if keys else ""


def run(command, environment, *words):
    done = subprocess.run([command, *map(str, words)], capture_output=True, text=True, env=ENVIRONMENT | environment, timeout=300)
    return done.returncode, done.stdout + (done.stderr if done.returncode == 2 else "")


# The servers: each gives the address of the files, and what the environment must say.

def port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@contextlib.contextmanager
def started(words, at, folder=None):
    server = subprocess.Popen(list(map(str, words)), cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=ENVIRONMENT)
    try:
        for _ in range(300):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", at), timeout=1):
                break
            if server.poll() is not None:
                sys.exit(f"the server ended: {words}")
            time.sleep(0.1)
        yield
    finally:
        server.kill()
        server.wait()


def send(method, address, data=None, kind="application/octet-stream"):
    request = urllib.request.Request(address, data=data, method=method, headers={"Content-Type": kind, "x-amz-acl": "public-read"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        answer.read()


@contextlib.contextmanager
def bucket(python, work):
    at = port()
    with started([python, "-m", "moto.server", "-H", "127.0.0.1", "-p", at], at):
        server = f"http://127.0.0.1:{at}"
        send("PUT", f"{server}/{BUCKET}")
        for file in below(work / "files"):
            send("PUT", f"{server}/{BUCKET}/all/{urllib.request.quote(str(file.relative_to(work / 'files')))}", file.read_bytes())
        yield server


@contextlib.contextmanager
def s3(python, work):
    with bucket(python, work) as server:
        keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": "us-east-1"}
        yield f"s3://{BUCKET}/all", keys | {"AWS_ENDPOINT_URL": server, "AWS_ALLOW_HTTP": "true"}


@contextlib.contextmanager
def gcs(python, work):
    with bucket(python, work) as server:
        key = {"gcs_base_url": server, "disable_oauth": True, "client_email": "", "private_key": "", "private_key_id": ""}
        yield f"gs://{BUCKET}/all", {"GOOGLE_SERVICE_ACCOUNT_KEY": json.dumps(key)}


@contextlib.contextmanager
def webdav(python, work):
    at = port()
    served = work / "served"
    (served / "dav").mkdir(parents=True, exist_ok=True)
    shutil.copytree(work / "files", served / "dav", dirs_exist_ok=True)
    with started([python, "-m", "wsgidav.server.server_cli", "--host", "127.0.0.1", "--port", at, "--root", served, "--auth", "anonymous"], at):
        yield f"http://127.0.0.1:{at}/dav", {}


@contextlib.contextmanager
def ranges(python, work):
    at = port()
    with started([python, "-m", "RangeHTTPServer", "--bind", "127.0.0.1", at], at, work / "files"):
        yield f"http://127.0.0.1:{at}", {}


@contextlib.contextmanager
def whole(python, work):
    at = port()
    with started([python, "-m", "http.server", "--bind", "127.0.0.1", at], at, work / "files"):
        yield f"http://127.0.0.1:{at}", {}


def below(folder):
    return [file for file in sorted(folder.rglob("*")) if file.is_file()]


SERVERS = {"S3": s3, "Google Cloud Storage": gcs, "WebDAV": webdav, "ranges": ranges, "whole files": whole}

if __name__ == "__main__":
    main()
