"""The proof that both parties hold the same IDs."""

import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trilateral.common.base.errors import DataError, ProtocolError
from trilateral.common.base.roles import Role
from trilateral.common.data.tables.id_list import Ids
from trilateral.common.protocol.ids import NONCE_BYTES, check_id_digest, id_digest

GUEST_NONCE = bytes(range(NONCE_BYTES))
HOST_NONCE = bytes(range(100, 100 + NONCE_BYTES))

id_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


def digest_of(ids: list[str], role: Role = Role.HOST) -> bytes:
    return id_digest(Ids.of(ids).digest(), GUEST_NONCE, HOST_NONCE, role)


def test_digest_is_the_documented_hmac() -> None:
    of_list = hashlib.sha256(b"".join(len(part).to_bytes(8, "big") + part for part in (b"007", "ü".encode()))).digest()

    assert digest_of(["007", "ü"]) == hmac.new(GUEST_NONCE + HOST_NONCE, b"host" + of_list, hashlib.sha256).digest()


@given(st.lists(id_text, max_size=4), st.lists(id_text, max_size=4))
def test_digests_agree_only_if_the_lists_do(left: list[str], right: list[str]) -> None:
    assert (digest_of(left) == digest_of(right)) == (left == right)


def test_the_digest_distinguishes_where_one_id_ends_and_the_next_begins() -> None:
    assert digest_of(["ab", "c"]) != digest_of(["a", "bc"])
    assert digest_of(["", "a"]) != digest_of(["a", ""])


def test_digest_depends_on_each_nonce_and_on_the_role() -> None:
    ids = ["1", "2"]
    other = bytes(NONCE_BYTES)
    digests = {
        digest_of(ids, Role.HOST),
        digest_of(ids, Role.GUEST),
        id_digest(Ids.of(ids).digest(), other, HOST_NONCE, Role.HOST),
        id_digest(Ids.of(ids).digest(), GUEST_NONCE, other, Role.HOST),
        id_digest(Ids.of(ids).digest(), HOST_NONCE, GUEST_NONCE, Role.HOST),
    }

    assert len(digests) == 5


def test_a_digest_sent_back_to_its_sender_is_refused() -> None:
    received = digest_of(["1", "2"], Role.HOST)

    with pytest.raises(DataError, match="do not hold the same IDs"):
        check_id_digest(received, Ids.of(["1", "2"]).digest(), GUEST_NONCE, HOST_NONCE, Role.GUEST)


def test_equal_lists_pass_and_others_are_refused_without_naming_an_id() -> None:
    digest = digest_of(["alice", "bob"])

    check_id_digest(digest, Ids.of(["alice", "bob"]).digest(), GUEST_NONCE, HOST_NONCE, Role.HOST)
    with pytest.raises(DataError) as refusal:
        check_id_digest(digest, Ids.of(["alice", "bert"]).digest(), GUEST_NONCE, HOST_NONCE, Role.HOST)

    assert not any(one in str(refusal.value) for one in ("alice", "bob", "bert"))


@pytest.mark.parametrize("size", [0, 16, 33])
def test_a_nonce_of_another_length_is_refused(size: int) -> None:
    with pytest.raises(ProtocolError, match="must have 32 bytes"):
        id_digest(Ids.of(["1"]).digest(), GUEST_NONCE, bytes(size), Role.HOST)
