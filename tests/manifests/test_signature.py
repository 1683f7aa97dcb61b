"""A signed corpus is its signer's, whole and unchanged; every other case is told apart in one line."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from manifests.commands import app
from manifests.manifest import Manifest
from manifests.signature import signed_line
from manifests.storage import Folder

minisign = pytest.importorskip("minisign", reason="py-minisign is not installed")
CHEAP = {"opslimit": 32768, "memlimit": 1 << 20}
"""Of scrypt: no test needs the cost of a real key."""


def call(*arguments: str | Path, code: int = 0) -> Result:
    result = CliRunner().invoke(app, [str(one) for one in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == code, result.output
    return result


class Keys:
    """A pair of keys in files: as `minisign -G` writes them, in the clear and protected."""

    def __init__(self, folder: Path, name: str) -> None:
        self.secret, self.public, self.protected = (folder / f"{name}.{end}" for end in ("key", "pub", "protected.key"))
        pair = minisign.KeyPair.generate()
        self.secret.write_bytes(bytes(pair.secret_key) + b"\n")
        self.public.write_bytes(bytes(pair.public_key) + b"\n")
        pair.secret_key.encrypt("swordfish", **CHEAP)
        self.protected.write_bytes(bytes(pair.secret_key) + b"\n")


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    return Keys(tmp_path_factory.mktemp("keys"), "ours")


@pytest.fixture
def signed(copied: Path, keys: Keys) -> Path:
    call("manifest", "sign", copied, "--key", keys.secret)
    return copied


def told(corpus: Path | str, *options: str | Path, code: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(call("verify", corpus, "--json", *options, code=code).stdout)
    return found


def refused(corpus: Path | str, *options: str | Path) -> str:
    """What verify finds in a corpus that is whole but for its signature."""
    found = told(corpus, *options, code=1)
    assert [one["where"] for one in found["findings"]] == ["signature"]
    assert (found["whole"], found["signature"]) == (False, None)
    return str(found["findings"][0]["what"])


def test_a_signed_corpus_verifies_with_the_public_key_in_a_file_or_as_a_word(
    signed: Path, keys: Keys, manifest: Manifest
) -> None:
    word = keys.public.read_text().splitlines()[1]
    for given in (keys.public, word):
        shown = call("verify", signed, "--public-key", given).stdout
        assert f"signed with the key {minisign_id(keys)}: digest {manifest.digest} corpus {manifest.content.name} time 2" in shown
        assert told(signed / "manifest.json", "--public-key", given)["signature"]["key"] == minisign_id(keys)


def minisign_id(keys: Keys) -> str:
    import base64

    return f"{int.from_bytes(base64.b64decode(keys.public.read_text().splitlines()[1])[2:10], 'little'):016X}"


def test_the_signature_is_one_of_minisign_over_a_line_that_anybody_can_write(
    signed: Path, keys: Keys, manifest: Manifest
) -> None:
    signature = minisign.Signature.from_file(signed / "manifest.json.minisig")
    assert signature.is_prehashed(), "minisign itself makes and takes only these by default"
    public = minisign.PublicKey.from_file(keys.public)
    public.verify(f"corpusmill/1 {manifest.digest}\n".encode(), signature)
    assert (signed / "manifest.json.minisig").read_bytes().count(b"\n") == 4


def test_a_corpus_built_again_elsewhere_has_the_signature_of_the_first(
    signed: Path, keys: Keys, finished: Path, tmp_path: Path
) -> None:
    raw = json.loads((signed / "manifest.json").read_text())
    other = Manifest.seal(Manifest.model_validate(raw).content, {**raw["run"], "host": "another"})
    other.save(Folder(signed))
    assert told(signed, "--public-key", keys.public)["whole"]


def test_a_signature_that_nobody_asked_to_check_is_told(signed: Path, finished: Path) -> None:
    assert "manifest.json.minisig was not checked: --public-key says whose it must be" in call("verify", signed).stdout
    assert told(signed)["signature"]["key"] is None
    assert "signature" not in told(finished) or told(finished)["signature"] is None


def test_an_unsigned_corpus_does_not_pass_for_a_signed_one(copied: Path, keys: Keys) -> None:
    assert "there is none" in refused(copied, "--public-key", keys.public)


def test_another_key_is_named_beside_the_one_that_was_given(signed: Path, keys: Keys, tmp_path: Path) -> None:
    other = Keys(tmp_path, "theirs")
    said = refused(signed, "--public-key", other.public)
    assert f"was made with the key {minisign_id(keys)}, and the one given is {minisign_id(other)}" in said


def test_a_key_that_only_bears_the_number_of_the_other_is_found(signed: Path, keys: Keys, tmp_path: Path) -> None:
    import base64

    other = Keys(tmp_path, "theirs")
    mine, theirs = (base64.b64decode(one.public.read_text().splitlines()[1]) for one in (keys, other))
    forged = tmp_path / "forged.pub"
    forged.write_text("untrusted comment: x\n" + base64.b64encode(mine[:10] + theirs[10:]).decode() + "\n")
    assert "is not of this manifest, or was changed" in refused(signed, "--public-key", forged)


def test_the_signature_of_another_manifest_is_told_with_both_digests(signed: Path, keys: Keys, manifest: Manifest) -> None:
    raw = json.loads((signed / "manifest.json").read_text())
    raw["content"]["components"]["web"]["licence"] = "LicenseRef-other"
    other = Manifest.seal(Manifest.model_validate(raw | {"digest": "", "run_digest": ""}).content, raw["run"])
    other.save(Folder(signed))
    first = told(signed, "--public-key", keys.public, code=1)["findings"][0]  # others tell what was changed
    assert first["where"] == "signature"
    assert f"of digest {manifest.digest}; this one has {other.digest}" in first["what"]


def another(letter: bytes) -> bytes:
    """Another letter of base64: of the signatures that are made anew each time, one in 64 has any given one."""
    return b"B" if letter == b"A" else b"A"


@pytest.mark.parametrize("line", range(4))
def test_a_changed_line_of_the_signature_is_found(signed: Path, keys: Keys, line: int) -> None:
    path = signed / "manifest.json.minisig"
    lines = path.read_bytes().splitlines()
    lines[line] = (
        lines[line].replace(b"corpus", b"corpse")
        if line == 2
        else lines[line][:-9] + another(lines[line][-9:-8]) + lines[line][-8:]
    )
    path.write_bytes(b"\n".join(lines) + b"\n")
    if line == 0:
        assert told(signed, "--public-key", keys.public)["whole"], "that comment is nobody's word"
    else:
        refused(signed, "--public-key", keys.public)


@pytest.mark.parametrize(
    "data",
    [b"", b"\x00" * 500, b"untrusted comment: a\nRW\ntrusted comment: b\nRW\n", b"a\n" * 100_000, "untrusted ñ\n\n\n\n".encode()],
)
def test_what_is_no_signature_is_called_so(signed: Path, keys: Keys, data: bytes) -> None:
    (signed / "manifest.json.minisig").write_bytes(data)
    assert "is no signature of minisign" in refused(signed, "--public-key", keys.public)


def test_a_signature_may_lie_elsewhere(copied: Path, keys: Keys, tmp_path: Path) -> None:
    call("manifest", "sign", copied, "--key", keys.secret, "--output", tmp_path / "apart.minisig", "--comment", "for Ada")
    assert not (copied / "manifest.json.minisig").exists()
    found = told(copied, "--public-key", keys.public, "--signature", tmp_path / "apart.minisig")
    assert found["signature"]["comment"].endswith(" for Ada")
    assert "needs --public-key" in call("verify", copied, "--signature", tmp_path / "apart.minisig", code=1).stderr
    gone = call("verify", copied, "--public-key", keys.public, "--signature", tmp_path / "gone", code=1)
    assert "there is no such file" in gone.stderr


def test_a_protected_key_asks_for_its_password(copied: Path, keys: Keys, tmp_path: Path) -> None:
    said = call("manifest", "sign", copied, "--key", keys.protected, code=1).stderr
    assert said == f"error: {keys.protected} is protected by a password; --password-file names a file with it\n"
    word = tmp_path / "word"
    word.write_text("sword\n")
    said = call("manifest", "sign", copied, "--key", keys.protected, "--password-file", word, code=1).stderr
    assert said == f"error: the password is not that of {keys.protected}\n"
    assert not (copied / "manifest.json.minisig").exists()
    word.write_text("swordfish\nmore\n")
    call("manifest", "sign", copied, "--key", keys.protected, "--password-file", word)
    assert told(copied, "--public-key", keys.public)["whole"]


def test_keys_that_are_none_or_of_the_other_kind_are_refused_by_name(copied: Path, keys: Keys, tmp_path: Path) -> None:
    nothing = tmp_path / "nothing"
    nothing.write_bytes(b"\xff\x00")
    for path, said in (
        (keys.public, "it is a public key"),
        (nothing, "is no secret key"),
        (tmp_path / "gone", "no such file"),
        (tmp_path, "not a file"),
    ):
        assert said in call("manifest", "sign", copied, "--key", path, code=1).stderr
    call("manifest", "sign", copied, "--key", keys.secret)
    for path, said in (
        (keys.secret, "is a secret key"),
        (nothing, "is no public key"),
        (tmp_path / "gone", "no such file"),
        ("AA" * 28, "is no public key"),
    ):
        result = call("verify", copied, "--public-key", path, code=1)
        assert said in result.stderr
        assert result.stdout == "", "nothing is hashed before the key is known to be one"


def test_a_comment_that_a_signature_cannot_hold_is_refused(copied: Path, keys: Keys) -> None:
    for comment in ("a\nb", "é", "x" * 9000):
        assert call("manifest", "sign", copied, "--key", keys.secret, "--comment", comment, code=1).stderr.startswith(
            "error: --comment"
        )


def test_a_signature_is_replaced_only_when_that_is_asked(signed: Path, keys: Keys, tmp_path: Path) -> None:
    before = (signed / "manifest.json.minisig").read_bytes()
    other = Keys(tmp_path, "theirs")
    assert "--force replaces it" in call("manifest", "sign", signed, "--key", other.secret, code=1).stderr
    assert (signed / "manifest.json.minisig").read_bytes() == before
    call("manifest", "sign", signed, "--key", other.secret, "--force")
    assert told(signed, "--public-key", other.public)["whole"]


@pytest.mark.slow
def test_a_takedown_has_no_signature_of_the_corpus_before(signed: Path, keys: Keys, tmp_path: Path) -> None:
    for output, corpus in ((tmp_path / "without", tmp_path / "without"), ("second.json", signed / "second.json")):
        call("audit", "takedown", signed, "--domain", "site0.example", "--output", output, "--reason", "asked for")
        assert "there is none" in refused(corpus, "--public-key", keys.public)
        call("manifest", "sign", corpus, "--key", keys.secret)
        assert told(corpus, "--public-key", keys.public)["whole"]
    assert told(signed, "--public-key", keys.public)["whole"], "the old corpus is signed as before"
    old = signed / "manifest.json.minisig"
    assert "is of another manifest" in refused(tmp_path / "without", "--public-key", keys.public, "--signature", old)


def test_without_the_library_it_is_said_how_to_get_it(finished: Path, keys: Keys) -> None:
    program = "import sys; sys.modules['minisign'] = None; from manifests.commands import app; app()"
    for words in (
        ["manifest", "sign", str(finished), "--key", str(keys.secret)],
        ["verify", str(finished), "--public-key", str(keys.public)],
    ):
        done = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr == "error: signatures need py-minisign, which is not installed: pip install 'corpusmill[sign]'\n"


def test_verify_needs_no_library_where_no_key_is_given(signed: Path) -> None:
    program = "import sys; sys.modules['minisign'] = None; from manifests.commands import app; app()"
    done = subprocess.run([sys.executable, "-c", program, "verify", str(signed)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(shutil.which("minisign") is None, reason="minisign itself is not installed")
def test_minisign_itself_verifies_it(signed: Path, keys: Keys, manifest: Manifest, tmp_path: Path) -> None:
    (tmp_path / "line").write_bytes(signed_line(manifest))
    command = ["minisign", "-V", "-m", tmp_path / "line", "-x", signed / "manifest.json.minisig", "-p", keys.public]
    assert subprocess.run(command, check=False).returncode == 0
