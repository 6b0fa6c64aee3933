"""Alignments over gRPC are exact, and bounded by the announced sizes and the host's policy."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from tests.support.late_engine import LateEngine
from tests.support.rpc import connected, plaintext_server
from tests.support.three_servers import DATASET, make_configs
from tests.support.waiting import eventually
from trilateral.common.base.errors import ConfigError, DataError, PeerError, PolicyError, ProtocolError, TrilateralError
from trilateral.common.base.roles import Role
from trilateral.common.compute.engine import OpenEngine
from trilateral.common.compute.local import LOCAL
from trilateral.common.config.process import Limits, ProcessConfig
from trilateral.common.data.alignment import dealing
from trilateral.common.data.alignment.guest_session import CommonShard, GuestSession
from trilateral.common.data.alignment.host_session import MAX_ANSWERS, HostSession
from trilateral.common.data.alignment.sources import MemoryIds
from trilateral.common.data.tables.id_list import Ids
from trilateral.common.jobs.quota import IDS_COUNTER, IdQuota
from trilateral.common.observe.audit import Audit
from trilateral.common.pb.v1 import alignment_pb2
from trilateral.common.process.description import ProcessServicer
from trilateral.common.process.server import bind
from trilateral.common.protocol.alignment import AlignmentProgress
from trilateral.common.rpc.channel import Peer
from trilateral.common.rpc.codec import JobKey
from trilateral.common.rpc.servicers import add_services
from trilateral.guest_party.alignment import GuestAlignment, GuestAlignments
from trilateral.guest_party.dataset_alignment import align_dataset
from trilateral.host_party.alignment_servicer import AlignmentServicer
from trilateral.host_party.alignments import Alignments, load_offer

GUEST_IDS = [f"{number:04d}" for number in range(0, 90)]
FORM = ["spaces", "unicode", "decimals"]
HOST_IDS = [f"{number:04d}" for number in range(60, 200)]
COMMON = [f"{number:04d}" for number in range(60, 90)]


@dataclass
class Host:
    """A running host that aligns, and the guest's connection to it."""

    config: ProcessConfig
    alignments: Alignments
    guest: GuestAlignments
    peer: Peer

    def audited(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.config.state / "audit.jsonl").read_text().splitlines()]


@asynccontextmanager
async def served(
    folder: Path,
    ids: list[str] | None = None,
    guest_limit: int = 10**9,
    open_engine: OpenEngine = lambda: LOCAL,
    **settings: Any,
) -> AsyncIterator[Host]:
    (folder / "host.csv").write_text("\n".join(["id,x", *(f"{one},1" for one in ids or HOST_IDS)]))
    made = make_configs(folder)[Role.HOST].model_dump(exclude_unset=True)
    config = ProcessConfig.model_validate(made | {key: made[key] | value for key, value in settings.items()})
    config.state.mkdir(parents=True)
    alignments = Alignments(config, Audit(config.state / "audit.jsonl"), open_engine)
    server = plaintext_server(Role.HOST)
    servicer = AlignmentServicer(alignments, lambda name: load_offer(config, name))
    add_services(server, {"ProcessService": ProcessServicer(Role.HOST), "AlignmentService": servicer})
    address = bind(server, "127.0.0.1:0", None)
    await server.start()
    (folder / "guest").mkdir(exist_ok=True)
    async with connected(Role.HOST, address) as peer:
        guest = GuestAlignments(
            peer, Limits(peer_timeout=2), lambda: IdQuota(folder / "guest", guest_limit), open_engine
        )
        yield Host(config, alignments, guest, peer)
        await server.stop(None)


async def nothing(common: CommonShard) -> None:
    pass


def ignore(progress: AlignmentProgress) -> None:
    pass


async def open_with(host: Host, ids: list[str], purpose: JobKey | str = DATASET) -> GuestAlignment:
    return await host.guest.open(purpose, MemoryIds(Ids.of(ids)), FORM)


async def test_the_host_does_not_learn_which_ids_of_a_dataset_are_common(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dealing, "SHARD_IDS", 20)
    async with served(tmp_path) as host:
        found: list[str] = []

        async def settle(common: CommonShard) -> None:
            found.extend(common.ids[place] for place in common.places)

        told: list[AlignmentProgress] = []
        alignment = await open_with(host, GUEST_IDS)
        result = await alignment.run(settle, told.append)
        assert sorted(found) == COMMON
        assert result == AlignmentProgress(7, 7, len(HOST_IDS), len(GUEST_IDS), len(COMMON))
        assert [progress.done for progress in told] == list(range(8))
        allowed, ended = host.audited()
        assert allowed["decision"] == "allowed"
        assert allowed["n_ids"] == {"host": len(HOST_IDS), "guest": len(GUEST_IDS)}
        assert (ended["result"], ended["shards"]["intersected"], ended["n_common"]) == ("finished", 7, 0)
        with pytest.raises(PeerError, match="has ended"):
            await alignment.run(nothing)


async def test_both_parties_of_a_job_get_the_same_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dealing, "SHARD_IDS", 20)
    run = JobKey.draw("credit")
    async with served(tmp_path) as host:
        with host.alignments.expect(run) as expected:
            waiting = asyncio.create_task(expected.common_rows(Ids.of(HOST_IDS), FORM, ignore))
            alignment = await open_with(host, GUEST_IDS, run)
            await alignment.run(alignment.confirm)
            aligned = await waiting
        assert [HOST_IDS[row] for row in aligned.rows] == COMMON
        assert (aligned.n_host, aligned.n_guest) == (len(HOST_IDS), len(GUEST_IDS))
        assert host.audited()[-1] == host.audited()[-1] | {
            "result": "finished",
            "job": "credit",
            "n_common": len(COMMON),
        }


async def test_a_job_continues_only_once_every_shard_is_settled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dealing, "SHARD_IDS", 70)
    run = JobKey.draw("credit")
    async with served(tmp_path) as host:
        with host.alignments.expect(run) as expected:
            waiting = asyncio.create_task(expected.common_rows(Ids.of(HOST_IDS), FORM, ignore))
            alignment = await open_with(host, GUEST_IDS, run)
            opened = host.alignments.find(alignment.id)
            common = [await alignment._intersect(shard) for shard in range(2)]
            # As if the thread that settles a shard had ended, and its coroutine had not run yet.
            opened.session.settle(0, common[0].tags)
            await host.alignments.settle(alignment.id, 1, common[1].tags)
            assert opened.session.complete
            assert not opened.settled.is_set()
            await host.alignments.settle(alignment.id, 0, common[0].tags)
            assert [HOST_IDS[row] for row in (await waiting).rows] == COMMON


async def test_the_host_accepts_common_rows_only_for_a_job(tmp_path: Path) -> None:
    async with served(tmp_path) as host:
        alignment = await open_with(host, GUEST_IDS)
        with pytest.raises(ProtocolError, match="belongs to no job"):
            await alignment.run(alignment.confirm)


async def test_the_guest_waits_for_the_hosts_table_and_learns_why_there_is_none(tmp_path: Path) -> None:
    run = JobKey.draw("credit")
    async with served(tmp_path) as host:
        opening = asyncio.create_task(open_with(host, GUEST_IDS, run))
        with suppress(DataError), host.alignments.expect(run):
            await asyncio.sleep(0.3)
            assert not opening.done()
            raise DataError("the table is no good")
        with pytest.raises(DataError, match="the table is no good"):
            await opening


async def test_a_run_has_one_alignment(tmp_path: Path) -> None:
    run = JobKey.draw("credit")
    async with served(tmp_path) as host:
        with host.alignments.expect(run) as expected:
            waiting = asyncio.create_task(expected.common_rows(Ids.of(HOST_IDS), FORM, ignore))
            await open_with(host, GUEST_IDS, run)
            with pytest.raises(PolicyError, match="there can be only one"):
                await open_with(host, GUEST_IDS, run)
            waiting.cancel()


async def test_a_run_that_the_host_does_not_know_gets_no_alignment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trilateral.common.rpc.calls.UNKNOWN_JOB_PATIENCE", 0.0)
    async with served(tmp_path) as host:
        with pytest.raises(PeerError, match="has lost the job"):
            await open_with(host, GUEST_IDS, JobKey.draw("credit"))


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        (
            {"policy": {"max_ids_a_day": 89}},
            PolicyError,
            "policy.max_ids_a_day: the maximum is 89 IDs of the other party a day",
        ),
        ({"datasets": {DATASET: {"path": "gone.csv"}}}, DataError, "the host: there is no file gone.csv"),
        (
            {"datasets": {"other": {"path": "gone.csv"}, DATASET: {"path": "x.csv", "id_form": {"case": True}}}},
            DataError,
            "x.csv",
        ),
    ],
)
async def test_the_host_states_the_reason_for_a_refusal(
    tmp_path: Path, settings: dict[str, Any], error: type[TrilateralError], words: str
) -> None:
    async with served(tmp_path, **settings) as host:
        with pytest.raises(error, match=words):
            await open_with(host, GUEST_IDS)


async def test_another_normal_form_is_refused_and_both_are_named(tmp_path: Path) -> None:
    async with served(tmp_path) as host:
        with pytest.raises(
            ConfigError, match=r"form \(spaces, unicode, case, decimals\) and the host's have \(spaces, "
        ):
            await host.guest.open(DATASET, MemoryIds(Ids.of(GUEST_IDS)), ["spaces", "unicode", "case", "decimals"])


async def test_the_daily_limit_of_ids_counts_all_sessions(tmp_path: Path) -> None:
    async with served(tmp_path, policy={"max_ids_a_day": 100}) as host:
        await (await open_with(host, GUEST_IDS)).close()
        with pytest.raises(PolicyError, match="10 left until"):
            await open_with(host, GUEST_IDS)
        await (await open_with(host, GUEST_IDS[:10])).close()


async def test_every_point_counts_since_padding_may_be_an_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dealing, "SHARD_IDS", 20)
    async with served(tmp_path, policy={"max_ids_a_day": 40}) as host:
        dealt = (await open_with(host, GUEST_IDS[:5])).session.dealing
        assert (dealt.n_shards, dealt.guest_points) == (7, 5)
        assert host.audited()[-1]["n_points"] == {"host": dealt.host_room, "guest": 35}
        for state, count in ((host.config.state, 35), (tmp_path / "guest", dealt.host_room)):
            assert json.loads((state / IDS_COUNTER).read_text())["given"] == count
        with pytest.raises(PolicyError, match="0 left until .* 30 needed"):
            await open_with(host, GUEST_IDS[:5])


@pytest.mark.parametrize("n_host", [0, 2**31 + 1])
async def test_the_guest_refuses_an_impossible_number_of_ids(tmp_path: Path, n_host: int) -> None:
    async with served(tmp_path) as host:
        with pytest.raises(ProtocolError, match=f"the host reports {n_host} IDs"):
            await host.guest.begin(bytes(16), bytes(32), bytes(32), MemoryIds(Ids.of(GUEST_IDS)), n_host)
    assert not (tmp_path / "guest" / IDS_COUNTER).exists()


async def test_the_number_of_sessions_is_limited_and_they_expire(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with served(tmp_path) as host:
        first, second = await open_with(host, GUEST_IDS), await open_with(host, GUEST_IDS)
        with pytest.raises(PolicyError, match="has 2 alignments outside jobs open"):
            await open_with(host, GUEST_IDS)
        await first.close()
        monkeypatch.setattr(host.alignments, "_seconds", 0.01)
        await open_with(host, GUEST_IDS)
        host.alignments.find(second.id)  # Each message of the guest restarts the time limit.
        await eventually(lambda: [line.get("result") for line in host.audited()].count("expired") == 2)
        with pytest.raises(PeerError, match="has ended, or the host was restarted"):
            await second.run(nothing)


async def intersect(host: Host, alignment: GuestAlignment, shard: int, points: bytes) -> None:
    request = alignment_pb2.IntersectShardRequest(session=alignment.id, shard=shard, points=points)
    await host.guest.call("AlignmentService/IntersectShard", request, alignment_pb2.IntersectShardResponse)


async def test_the_guest_gets_no_more_than_it_announced(tmp_path: Path) -> None:
    async with served(tmp_path) as host:
        alignment = await open_with(host, GUEST_IDS)
        points = alignment.session.request(0)
        with pytest.raises(ProtocolError, match="bytes, expected"):
            await intersect(host, alignment, 0, points + points)
        with pytest.raises(ProtocolError, match="there is no shard 1"):
            await intersect(host, alignment, 1, points)
        await intersect(host, alignment, 0, points)
        other = GuestSession(MemoryIds(Ids.of(HOST_IDS[: len(GUEST_IDS)])), alignment.session.dealing).request(0)
        with pytest.raises(ProtocolError, match="differs from the first one"):
            await intersect(host, alignment, 0, other)


async def test_a_guest_that_requests_a_shard_too_often_ends_the_alignment(tmp_path: Path) -> None:
    async with served(tmp_path) as host:
        alignment = await open_with(host, GUEST_IDS)
        points = alignment.session.request(0)
        for _ in range(MAX_ANSWERS):
            await intersect(host, alignment, 0, points)
        with pytest.raises(ProtocolError, match="the alignment is over"):
            await intersect(host, alignment, 0, points)
        with pytest.raises(PeerError, match="does not know this alignment"):
            await intersect(host, alignment, 0, points)
        assert host.audited()[-1]["result"] == "failed"


async def test_a_repeated_opening_gets_the_same_session_and_counts_once(tmp_path: Path) -> None:
    async with served(tmp_path) as host:

        async def ask(**changed: Any) -> alignment_pb2.OpenAlignmentResponse:
            fields: dict[str, Any] = {"nonce": bytes(32), "n_ids": 9, "form": FORM, "dataset": DATASET}
            request = alignment_pb2.OpenAlignmentRequest(**fields | changed)
            return await host.guest.call("AlignmentService/OpenAlignment", request, alignment_pb2.OpenAlignmentResponse)

        first, second = await asyncio.gather(ask(), ask())
        assert first == second == await ask()
        assert json.loads((host.config.state / IDS_COUNTER).read_text())["given"] == 9
        with pytest.raises(ProtocolError, match="opens an alignment twice with different requests"):
            await ask(n_ids=10)
        other = await ask(nonce=bytes([1] * 32))
        assert other.session != first.session
        with pytest.raises(PolicyError, match="has 2 alignments outside jobs open"):
            await ask(nonce=bytes([2] * 32))
        host.alignments.close(first.session)
        assert (await ask()).session not in (first.session, other.session)


async def test_too_many_ids_are_refused_before_a_table_is_read(tmp_path: Path) -> None:
    gone = {DATASET: {"path": "gone.csv"}}
    async with served(tmp_path, policy={"max_ids_a_day": 89}, datasets=gone) as host:
        with pytest.raises(PolicyError, match="the maximum is 89 IDs of the other party a day"):
            await open_with(host, GUEST_IDS)


async def test_the_guest_counts_the_ids_of_the_host(tmp_path: Path) -> None:
    async with served(tmp_path, guest_limit=100) as host:
        with pytest.raises(PolicyError, match="the guest refuses the alignment under policy.max_ids_a_day"):
            await open_with(host, GUEST_IDS)


async def test_the_command_prints_the_number_of_matches_and_the_changed_spellings(tmp_path: Path) -> None:
    async with served(tmp_path) as host:
        address = host.peer.address
        config = tmp_path / "guest.yaml"
        made = make_configs(tmp_path)[Role.GUEST].model_dump(exclude_unset=True, mode="json")
        made["peers"]["host"] = address
        config.write_text(json.dumps(made))  # JSON is YAML
        (tmp_path / "guest.csv").write_text("\n".join(["id,x,label", *(f" {one},1,yes" for one in GUEST_IDS)]))
        command = [sys.executable, "-m", "trilateral.cli.main", "align", DATASET, "--config", str(config)]
        align = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        said, _ = await align.communicate()
    assert align.returncode == 0
    assert said.decode().splitlines() == [
        "30 common IDs",
        "guest: 90 IDs, 60 of them not at the host",
        "host: 140 IDs, 110 of them not at the guest",
        "guest's IDs changed by `id_form`: spaces: 90",
    ]


async def test_an_unknown_dataset_is_named(tmp_path: Path) -> None:
    config = make_configs(tmp_path)[Role.GUEST]
    async with served(tmp_path) as host:
        with pytest.raises(ConfigError, match=f"there is no dataset named other: the configuration has {DATASET}"):
            await align_dataset(config, host.peer, "other")


async def test_an_aborted_alignment_leaves_no_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with served(tmp_path) as host:

        async def break_off(common: CommonShard) -> None:
            raise DataError("no more")

        monkeypatch.setattr(dealing, "SHARD_IDS", 1)
        alignment = await open_with(host, GUEST_IDS)
        with pytest.raises(DataError, match="no more"):
            await alignment.run(break_off)
        assert host.audited()[-1]["result"] == "failed"


async def test_the_host_answers_before_its_ids_are_dealt_and_both_deal_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deal, guest_has_dealt = HostSession.deal, Event()

    def late(session: HostSession) -> None:
        assert guest_has_dealt.wait(20)
        deal(session)

    monkeypatch.setattr(HostSession, "deal", late)
    async with served(tmp_path) as host:
        alignment = await open_with(host, GUEST_IDS)
        guest_has_dealt.set()
        assert (await alignment.run(nothing)).n_common == len(COMMON)


async def test_a_host_that_cannot_deal_its_ids_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(session: HostSession) -> None:
        raise DataError("the IDs cannot be dealt")

    monkeypatch.setattr(HostSession, "deal", failing)
    async with served(tmp_path) as host:
        alignment = await open_with(host, GUEST_IDS)
        with pytest.raises(DataError, match="the IDs cannot be dealt"):
            await alignment.run(nothing)
        assert host.audited()[-1]["result"] == "failed"


async def test_both_parties_compute_on_their_engines_and_close_them(tmp_path: Path) -> None:
    made: list[LateEngine] = []

    def open_engine() -> LateEngine:
        made.append(LateEngine(n_slots=3))
        return made[-1]

    async with served(tmp_path, open_engine=open_engine) as host:
        alignment = await open_with(host, GUEST_IDS)
        assert (await alignment.run(nothing)).n_common == len(COMMON)
        await eventually(lambda: all(engine.closed for engine in made))
    assert sorted(engine.n_run for engine in made) == [1, 2]
