"""Who is at fault among ranks that no launcher watches: from the last words they left in torch's store."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType

from harness.files.rundir import RunDir
from harness.launching.blame import Culprit, blame_failure, is_effect
from harness.launching.blame_words import case_name, named, place_of
from harness.launching.launch_outcome import LaunchOutcome, OutcomeKind
from harness.launching.status import Phase, RankStatus, read_status
from harness.runs.node_meeting import Presence
from harness.runs.node_signals import Terminated
from harness.system.processes import is_alive

# How long rank 0 waits for what other failed ranks have to say: less than torchrun waits before it kills.
PATIENCE = 5.0
_PAUSE = 0.1


def last_words(
    rundir: RunDir, rank: int, world: int, peers: Mapping[int, Presence] = MappingProxyType({})
) -> dict[int, RankStatus]:
    """Leave this rank's last word in the store; on rank 0, return everyone's that can be had.

    `peers` are the ranks that this one has met: those on this machine can be read even from folders of their own.
    """
    import torch.distributed as dist

    own = read_status(rundir, rank)
    words = {} if own is None else {rank: own}
    try:
        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        store = dist.TCPStore(host, port, is_master=False, timeout=timedelta(seconds=PATIENCE))  # type: ignore[attr-defined]
        # JSON both ways; what comes out of a store that others can write to is validated, never unpickled.
        if own is not None:
            store.set(_key(rank), own.model_dump_json())
        if rank == 0:
            words |= _collected(store, range(1, world))
    except (RuntimeError, KeyError, ValueError):
        pass  # the store went with the node that held it
    return words | (_seen(rundir, world, words, peers) if rank == 0 else {})


def deaths_among(peers: Mapping[int, Presence], words: Mapping[int, RankStatus]) -> tuple[int, ...]:
    """The ranks on this machine whose process is gone though their last word is neither an error nor that they are
    done."""
    unsaid = (rank for rank in peers if rank not in words or not words[rank].phase.is_final)
    return tuple(rank for rank in sorted(unsaid) if peers[rank].is_here and not is_alive(peers[rank].pid))


def outcome_of(
    words: Mapping[int, RankStatus], world: int, seconds: float, died: Sequence[int] = ()
) -> LaunchOutcome:
    """The ending that the last words tell of: an error that is a cause, a rank that `died`, or else the ranks that
    said nothing."""
    failed = {rank: status for rank, status in words.items() if status.error is not None}
    causes = {rank: status for rank, status in failed.items() if not is_effect(status)}
    if causes:
        culprit = blame_failure(causes)
        return LaunchOutcome(OutcomeKind.RANK_FAILED, seconds, culprit, causes[culprit.ranks[0]].error)
    if died:
        return LaunchOutcome(OutcomeKind.RANK_DIED, seconds, _blame_deaths(words, died))
    waited = {rank: status for rank, status in failed.items() if not _was_told(status)}
    if not waited:
        names = [status.error.message for status in failed.values() if status.error is not None]
        return LaunchOutcome(OutcomeKind.INTERRUPTED, seconds, signal=names[0] if names else "SIGTERM")
    return LaunchOutcome(OutcomeKind.RANK_DIED, seconds, _blame_silence(words, waited, world))


def _blame_deaths(words: Mapping[int, RankStatus], died: Sequence[int]) -> Culprit:
    """The ranks whose processes are gone, at the place of the one that was least far."""
    known = [words[rank] for rank in died if rank in words]
    if not known:
        return Culprit(tuple(died), f"{named(died)} died at the start", Phase.START)
    first = min(known, key=_progress)
    reason = f"{named(died)} died in {place_of(first)}, without a last word"
    return Culprit(tuple(died), reason, first.phase, case_name(first))


def _blame_silence(words: Mapping[int, RankStatus], waited: Mapping[int, RankStatus], world: int) -> Culprit:
    """The ranks without a word of their own, but for those that were as far as the ranks that waited."""
    front = max(_progress(status) for status in waited.values())
    silent = [rank for rank in range(world) if rank not in waited]
    behind = [rank for rank in silent if rank not in words or _progress(words[rank]) < front]
    guilty, first = tuple(behind or silent or sorted(waited)), waited[min(waited)]
    case = case_name(first)
    heard = "" if first.error is None else f"; rank {first.rank} was told: {first.error.message.splitlines()[0]}"
    reason = (
        f"{named(guilty)} ended or stopped answering without a last word, at case {case!r} or before it{heard}"
    )
    return Culprit(guilty, reason, first.phase, case)


def _was_told(status: RankStatus) -> bool:
    return status.error is not None and status.error.code == Terminated.__name__


def _progress(status: RankStatus) -> tuple[int, int]:
    return (-1 if status.case is None else status.case.index, status.collectives)


def _collected(store: object, ranks: range) -> dict[int, RankStatus]:
    """What the store holds of `ranks`, within PATIENCE seconds."""
    found: dict[int, RankStatus] = {}
    end = time.monotonic() + PATIENCE
    while len(found) < len(ranks) and time.monotonic() < end:
        for rank in ranks:
            if rank not in found and store.check([_key(rank)]):  # type: ignore[attr-defined]
                found[rank] = RankStatus.model_validate_json(store.get(_key(rank)))  # type: ignore[attr-defined]
        time.sleep(_PAUSE)
    return found


def _seen(
    rundir: RunDir, world: int, known: Mapping[int, RankStatus], peers: Mapping[int, Presence]
) -> dict[int, RankStatus]:
    """Statuses of the other ranks in a directory that they share with this one, or elsewhere on this machine."""
    found = {}
    for rank in (rank for rank in range(world) if rank not in known):
        peer = peers.get(rank)
        place = RunDir(Path(peer.folder)) if peer is not None and peer.is_here else rundir
        status = _status_or_none(place, rank)
        # What an earlier, refused run left in the same folder is not this rank's word.
        if status is not None and (peer is None or status.pid == peer.pid):
            found[rank] = status
    return found


def _status_or_none(rundir: RunDir, rank: int) -> RankStatus | None:
    try:
        return read_status(rundir, rank)
    except OSError:
        return None


def _key(rank: int) -> str:
    run, restart = os.environ.get("TORCHELASTIC_RUN_ID", ""), os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return f"grpo-verify/{run}/{restart}/{rank}"
