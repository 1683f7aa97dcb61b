"""A signature over a corpus, in minisign's format, by whoever answers for it.

What is signed is one line, the manifest's format and digest (`signed_line`). The digest stands for everything in `content`,
through it for every file of the corpus, and not for the `run` section: the same corpus built again elsewhere has the same
signature. The trusted comment, which is signed too, names the digest, so that a signature of another manifest is told from a
changed one. The library is the extra `sign`; a SignatureError says where it is missing.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from manifests.manifest import Manifest
from manifests.storage import Folder

if TYPE_CHECKING:
    import minisign

SUFFIX = ".minisig"
"""Behind the name of the manifest."""
LARGEST_FILE = 1 << 16
"""Bytes of a key or a signature; real ones have some hundred."""
NEEDED = "signatures need py-minisign, which is not installed: pip install 'corpusmill[sign]'"
KEY_ID = slice(2, 10)
"""Where it stands in a key and in a signature, behind the two letters of the algorithm; least significant byte first."""
PUBLIC_KEY = re.compile(r"[A-Za-z0-9+/]{55,56}={0,2}")
_DIGEST = re.compile(r"\bdigest ([0-9a-f]{64})\b")


class SignatureError(Exception):
    """A key or signature that is none, or not of this manifest and key; the message says which and what would do."""


@dataclass(frozen=True)
class Signed:
    """A signature that holds. key: the ID of its key, as minisign prints it. comment: the trusted comment. None of either where
    there is a signature that nobody asked to check."""

    file: str
    key: str | None
    comment: str | None

    def in_words(self) -> str:
        if self.key is None:
            return f"{self.file} was not checked: --public-key says whose it must be"
        return f"signed with the key {self.key}: {self.comment}"


def signed_line(manifest: Manifest) -> bytes:
    """What is signed; `echo corpusmill/1 DIGEST` writes it."""
    return f"{manifest.format} {manifest.digest}\n".encode()


def sign(manifest: Manifest, secret_key: str | os.PathLike[str], password: str | None = None, comment: str = "") -> bytes:
    """The signature of a manifest, by a file of a secret key. `comment`: printable ASCII, behind digest, name and time in the
    trusted comment. PasswordNeeded where the key is protected and there is no password."""
    library = _library()
    data = _read(secret_key)
    try:
        key = library.SecretKey.from_bytes(data)
    except ValueError as error:
        hint = "; it is a public key" if _is_public(library, data) else ""
        raise SignatureError(f"{secret_key} is no secret key of minisign{hint or f': {error}'}") from None
    time = datetime.now(UTC).isoformat(timespec="seconds")
    trusted = f"digest {manifest.digest} corpus {manifest.content.name} time {time}"
    with key:
        if key.is_encrypted():
            if password is None:
                raise PasswordNeeded(f"{secret_key} is protected by a password; --password-file names a file with it")
            try:
                key.decrypt(password)
            except (ValueError, MemoryError):
                raise SignatureError(f"the password is not that of {secret_key}") from None
        try:
            made = key.sign(signed_line(manifest), trusted_comment=f"{trusted} {comment}".rstrip())
        except ValueError as error:
            raise SignatureError(f"--comment {comment!r}: {error}") from None
    return bytes(made) + b"\n"


class PasswordNeeded(SignatureError):
    """The secret key is protected."""


def signed_by(
    corpus: Folder, manifest: Manifest, name: str, public_key: str | None, signature: str | None = None
) -> Signed | SignatureError | None:
    """Whether the manifest called `name` is signed with `public_key` (the key itself, or a file), by the file `signature`, or by
    the one that lies beside it. What it is instead is returned, not raised, but where key or library are missing. Without a key:
    None, or a signature that nobody asked to check."""
    beside = f"{name}{SUFFIX}"
    if public_key is None:
        if signature is not None:
            raise SignatureError("--signature needs --public-key: whose must it be?")
        return Signed(f"{corpus.url}/{beside}", None, None) if corpus.exists(beside) else None
    library = _library()
    key = _public_key(library, public_key)
    if signature is None:
        if not corpus.exists(beside):
            return SignatureError(f"there is none: {corpus.url}/{beside} does not exist")
        where, data = f"{corpus.url}/{beside}", corpus.read_range(beside, 0, min(corpus.size(beside), LARGEST_FILE))
    else:
        where, data = signature, _read(signature)
    try:
        read = library.Signature.from_bytes(data)
    except ValueError as error:
        return SignatureError(f"{where} is no signature of minisign: {error}")
    mine, other = _key_id(bytes(key.to_base64())), _key_id(bytes(read).splitlines()[1])
    if mine != other:
        return SignatureError(f"{where} was made with the key {other}, and the one given is {mine}")
    try:
        key.verify(signed_line(manifest), read)
    except ValueError:
        named = _DIGEST.search(read.trusted_comment)
        if named is not None and named[1] != manifest.digest:
            return SignatureError(f"{where} is of another manifest, of digest {named[1]}; this one has {manifest.digest}")
        return SignatureError(f"{where} is not of this manifest, or was changed, or another key says that it is {mine}")
    return Signed(where, mine, read.trusted_comment)


def _library() -> Any:
    try:
        import minisign
    except ImportError:
        raise SignatureError(NEEDED) from None
    return minisign


def _read(path: str | os.PathLike[str]) -> bytes:
    try:
        if not os.path.isfile(path):
            raise SignatureError(f"{path}: {'not a file' if os.path.exists(path) else 'there is no such file'}")
        with open(path, "rb") as file:
            return file.read(LARGEST_FILE)
    except OSError as error:
        raise SignatureError(f"{path}: cannot be read: {error.strerror}") from None


def _public_key(library: Any, given: str) -> minisign.PublicKey:
    if PUBLIC_KEY.fullmatch(given) and not os.path.exists(given):
        try:
            return library.PublicKey.from_base64(given)
        except ValueError as error:
            raise SignatureError(f"{given} is no public key of minisign: {error}") from None
    data = _read(given)
    try:
        return library.PublicKey.from_bytes(data)
    except ValueError as error:
        try:
            library.SecretKey.from_bytes(data).wipe()
        except ValueError:
            raise SignatureError(f"{given} is no public key of minisign: {error}") from None
        raise SignatureError(f"{given} is a secret key, which is nobody else's; its public key is needed") from None


def _is_public(library: Any, data: bytes) -> bool:
    try:
        library.PublicKey.from_bytes(data)
    except ValueError:
        return False
    return True


def _key_id(encoded: bytes) -> str:
    """As minisign prints it: a number in hexadecimal."""
    try:
        return base64.b64decode(encoded)[KEY_ID][::-1].hex().upper()
    except binascii.Error:
        return "?"
