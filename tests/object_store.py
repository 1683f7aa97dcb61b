"""A real S3 server on this machine, spoken to over HTTP, for every test that needs one."""

from __future__ import annotations

import contextlib
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

CREDENTIALS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}


@contextlib.contextmanager
def object_store(bucket: str) -> Iterator[str]:
    """The URL of an empty bucket. While it is open, the environment says where its server is, as a person would say it.

    The servers of one process share what they hold and each new one empties it, so only one may be open at a time: a fixture of
    it is a module's. Tests are skipped where s3fs or moto is missing.
    """
    s3fs = pytest.importorskip("s3fs", reason="s3fs is not installed")
    server = pytest.importorskip("moto.server", reason="moto is not installed").ThreadedMotoServer(
        ip_address="127.0.0.1", port=0, verbose=False
    )
    server.start()
    host, port = server.get_host_and_port()
    try:
        with pytest.MonkeyPatch.context() as environment:
            for name, value in {**CREDENTIALS, "AWS_ENDPOINT_URL": f"http://{host}:{port}"}.items():
                environment.setenv(name, value)
            s3fs.S3FileSystem.clear_instance_cache()
            urllib.request.urlopen(f"http://{host}:{port}/moto-api/reset", data=b"").close()
            s3fs.S3FileSystem().mkdir(bucket)
            yield f"s3://{bucket}"
            s3fs.S3FileSystem.clear_instance_cache()
    finally:
        server.stop()


def uploaded(corpus: Path, url: str) -> str:
    """The URL at which the files of a corpus lie, but for its work files, once they were copied below `url`."""
    import s3fs

    there = f"{url}/{corpus.name}"
    for path in corpus.rglob("*"):
        if path.is_file() and path.parts[len(corpus.parts)] != "steps":
            s3fs.S3FileSystem().put_file(str(path), f"{there.removeprefix('s3://')}/{path.relative_to(corpus)}")
    return there
