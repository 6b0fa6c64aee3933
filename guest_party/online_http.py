"""Requests for online scores over HTTP, as JSON. No error quotes what a program has sent."""

import hmac
from pathlib import Path
from secrets import token_urlsafe
from typing import Any

from aiohttp import web

from trilateral.common.base.errors import ProtocolError
from trilateral.common.base.files import write_whole
from trilateral.common.base.roles import Role
from trilateral.common.jobs.folder import writing
from trilateral.common.process.http import HttpRefusalError, json_body
from trilateral.guest_party.online import OnlineScores, ReasonsWanted, RowScore, RowToScore
from trilateral.guest_party.online_requests import check_count, check_features

TOKEN = ".online-token"  # noqa: S105 (the name of a file)
"""File in the state folder. No job has this name, because a job's name never begins with a dot."""
TOKEN_BYTES = 32
_LARGEST = 2**63


def score_routes(scores: OnlineScores, token: str) -> list[web.RouteDef]:
    """Return what the guest answers over HTTP.

    Args:
        scores: of this process.
        token: each request for scores needs it.
    """

    async def score(request: web.Request) -> web.Response:
        given = request.headers.get("Authorization", "")
        # The library turns bytes that are not UTF-8 into surrogates.
        if not hmac.compare_digest(given.encode(errors="surrogateescape"), f"Bearer {token}".encode()):
            raise HttpRefusalError(
                401, f"send the token in {TOKEN} of the guest's state folder: Authorization: Bearer TOKEN"
            )
        body = await json_body(request)
        job, dataset, rows, reasons = _read_body(body)
        scored = await scores.score(job, dataset, rows, reasons)
        answers = [_answer_of(row, asked, reasons) for row, asked in zip(scored.rows, rows, strict=True)]
        return web.json_response({"scores": answers, "calibration": scored.calibration})

    async def health(request: web.Request) -> web.Response:
        return web.json_response({"status": "serving"})

    return [web.post("/score", score), web.get("/health", health)]


def load_token(state: Path) -> str:
    """Return the token for scores over HTTP. It is drawn once; remove the file and restart to draw another one.

    Raises:
        ConfigError: the file cannot be read or written.
    """
    path = state / TOKEN
    with writing(Role.GUEST, path):
        if not path.exists():
            write_whole(path, token_urlsafe(TOKEN_BYTES) + "\n")
        return path.read_text().strip()


def _read_body(body: Any) -> tuple[str, str, list[RowToScore], ReasonsWanted]:
    if not isinstance(body, dict) or not body.keys() <= {"job", "dataset", "rows", "reasons", "host_reasons"}:
        raise ProtocolError(
            "expected a JSON object with `job`, `dataset`, `rows` and, if wanted, `reasons` and `host_reasons`"
        )
    job, dataset, rows = (body.get(name) for name in ("job", "dataset", "rows"))
    if not isinstance(job, str) or not isinstance(dataset, str) or not isinstance(rows, list):
        raise ProtocolError("expected `job` and `dataset` as text, and `rows` as a list")
    check_count(rows)
    own, host = (body.get(name, 0) for name in ("reasons", "host_reasons"))
    if type(own) is not int or type(host) is not int:
        raise ProtocolError("expected `reasons` and `host_reasons` as whole numbers")
    return job, dataset, [_read_row(row) for row in rows], ReasonsWanted(own, host)


def _read_row(row: Any) -> RowToScore:
    """Read a row: its ID alone, or an object with `id` and `features`."""
    if not isinstance(row, dict):
        return RowToScore(_read_id(row))
    if "id" not in row or not row.keys() <= {"id", "features"}:
        raise ProtocolError("expected each row as an ID, or as an object with `id` and `features`")
    features = row.get("features")
    return RowToScore(_read_id(row["id"]), None if features is None else check_features(features))


def _read_id(one: Any) -> tuple[str, ...]:
    parts = one if isinstance(one, list) else [one]
    if not all(isinstance(part, str) or (type(part) is int and abs(part) < _LARGEST) for part in parts):
        raise ProtocolError("expected an ID as text or a whole number, or as a list of its parts")
    return tuple(map(str, parts))


def _answer_of(row: RowScore, asked: RowToScore, reasons: ReasonsWanted) -> dict[str, Any]:
    one = asked.id[0] if len(asked.id) == 1 else list(asked.id)
    if row.lacking is not None:
        return {"id": one, "score": None, "probability": None, "lacking": row.lacking.value}
    answer: dict[str, Any] = {"id": one, "score": row.score, "probability": row.probability}
    if reasons.own:
        answer["reasons"] = row.reasons
    if reasons.host:
        answer["host_reasons"] = row.host_reasons
    return answer
