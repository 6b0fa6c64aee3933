"""What the list of online scores, and the points, tell the host and the guest besides what was asked for."""

import hashlib

import numpy as np
import pytest

from trilateral.common.curve25519.points import KEY_BYTES, derive_keys, encode_to_curve, multiply, split_points
from trilateral.common.data.alignment import labelled_list
from trilateral.common.data.alignment.intersection import blind
from trilateral.common.data.alignment.labelled_list import (
    DOMAIN,
    ENTRY_BYTES,
    TAG_BYTES,
    LabelledList,
    Query,
    answer,
    make_entries,
    new_key,
    sort_entries,
)

ALL_IDS = [f"{number:04d}" for number in range(200)]
"""Every ID that there can be: both sides can list them all."""
HOST_IDS = ALL_IDS[::2]
SCORES = np.arange(len(HOST_IDS)) / 8
ASKED = HOST_IDS[33]


def a_list(key: bytes) -> LabelledList:
    return LabelledList(sort_entries(make_entries(key, HOST_IDS, SCORES))[0])


def ask(ids: list[str], key: bytes) -> list[bytes]:
    query = Query.of(ids)
    return query.read(answer(key, query.points))


def weak_digest(point: bytes, text: bytes) -> bytes:
    return hashlib.blake2b(text, digest_size=ENTRY_BYTES).digest()


def one_mask(point: bytes, text: bytes) -> bytes:
    return hashlib.blake2b(point + text, digest_size=TAG_BYTES).digest() + b"the mask"


@pytest.mark.parametrize("protected", [True, False])
def test_the_host_tries_all_ids_on_a_point(protected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has seen the points of an earlier question, whose ID it knows by now: the keys might be the same ones."""
    if not protected:
        monkeypatch.setattr(labelled_list, "token_bytes", bytes)
    seen = Query.of([ASKED]).points
    guessed = derive_keys(bytes(32), 1)
    tried = {multiply(guessed, encode_to_curve([one.encode()], DOMAIN)): one for one in ALL_IDS}
    tried |= {Query.of([one]).points: one for one in ALL_IDS}
    assert tried.get(seen) == (None if protected else ASKED)


@pytest.mark.parametrize("protected", [True, False])
def test_the_guest_tries_all_ids_on_the_list(protected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It uses the answer for one ID, a key of its own, and the bare hash of each ID."""
    if not protected:
        monkeypatch.setattr(labelled_list, "_digest", weak_digest)
    key = new_key()
    entries = a_list(key)
    known = ask([ASKED], key)
    texts = [one.encode() for one in ALL_IDS]
    tried = [labelled_list._digest(point, text) for point in (known[0], bytes(32)) for text in texts]
    for points in (encode_to_curve(texts, DOMAIN), multiply(new_key(), encode_to_curve(texts, DOMAIN))):
        tried += map(labelled_list._digest, split_points(points), texts)
    found = {entries.open(digest) for digest in tried} - {None}
    assert found == (set() if protected else {*SCORES})
    assert entries.open(known[0]) == SCORES[33]


@pytest.mark.parametrize("protected", [True, False])
def test_the_guest_takes_the_mask_of_one_score_for_the_others(protected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not protected:
        monkeypatch.setattr(labelled_list, "_digest", one_mask)
    key = new_key()
    entries = a_list(key)
    mask = np.frombuffer(ask([ASKED], key)[0][TAG_BYTES:], np.uint8)
    rows = np.frombuffer(entries._data, np.uint8).reshape(-1, ENTRY_BYTES)[:, TAG_BYTES:]
    mask = mask[: rows.shape[1]]
    read = set((rows ^ mask).view("<f8")[:, 0].tolist())
    assert len(read & {*SCORES}) == (1 if protected else len(SCORES))


@pytest.mark.parametrize("protected", [True, False])
def test_the_guest_compares_two_lists_to_find_the_rows_that_changed(
    protected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not protected:
        monkeypatch.setattr(labelled_list, "token_bytes", bytes)
    before = a_list(labelled_list.new_key())
    SCORES_AFTER = SCORES + (np.arange(len(SCORES)) == 33)
    after = LabelledList(sort_entries(make_entries(labelled_list.new_key(), HOST_IDS, SCORES_AFTER))[0])
    one, other = (
        {each._data[start : start + ENTRY_BYTES] for start in range(0, len(each._data), ENTRY_BYTES)}
        for each in (before, after)
    )
    assert len(one - other) == (len(SCORES) if protected else 1)


@pytest.mark.parametrize("protected", [True, False])
def test_the_guest_opens_an_entry_with_a_point_whose_id_it_does_not_know(
    protected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From an alignment it has the points H(y)^k of the host's IDs, but it can compute neither y nor H(y) from them.

    Even if it could take the key k off them, the ID is missing in the hash.
    """
    if not protected:
        monkeypatch.setattr(labelled_list, "_digest", lambda point, text: weak_digest(point, point))
    key = new_key()
    entries = a_list(key)
    unknown = multiply(key, encode_to_curve([ASKED.encode()], DOMAIN))
    tried = [labelled_list._digest(unknown, one.encode()) for one in ("", "another ID")]
    assert {entries.open(digest) for digest in tried} == ({None} if protected else {SCORES[33]})


def test_points_of_an_alignment_open_nothing() -> None:
    """The host answers a point of an alignment, which a key of that alignment hides, as it answers each."""
    key = new_key()
    entries = a_list(key)
    of_alignment = blind(b"\x07" * KEY_BYTES, [ASKED])
    digest = labelled_list._digest(answer(key, of_alignment), ASKED.encode())
    assert entries.open(digest) is None
