"""`reveal`, `snapshot` and `compare` from the command line: texts, statuses, and what is refused."""

import json
from pathlib import Path

import pytest

from grpo_contract import GRPOVerifyError
from harness.commands import answer
from harness.settings.flags import Answer


def ask(*tokens: object) -> Answer:
    return answer([str(token) for token in tokens], lambda line: None)


def test_reveal_prints_trees_and_the_status() -> None:
    text, status = ask(
        "reveal", "--layouts", "1x1,1x2", "--tokens", 4, "--columns", 4, "--tiles", 2, "--sequences", 2
    )
    assert status == 0
    assert "1x1, 1x2: folded by halves\n    ((0 2) (1 3))" in text
    assert "equal trees prove equal order" in text


def test_reveal_as_json_for_an_op_that_hides_its_ranks() -> None:
    text, status = ask(
        "reveal", "--op", "examples.all_reduce_loss:all_reduce_loss", "--layouts", "1x1,1x2", "--tokens", 4,
        "--columns", 4, "--json",
    )  # fmt: skip
    content = json.loads(text)
    assert (status, content["exit_status"]) == (3, 3)
    assert content["reductions"][0]["trees"]["1x1"] == [[[0, 1], 2], 3]
    assert "real ranks" in content["reductions"][0]["not_revealed"]["1x2"]


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        (("reveal", "--op", "grpo_los"), "did you mean|one of grpo_loss"),
        (("reveal", "--op", "__main__:x"), "package.module:attribute of an installed package"),
        (("snapshot", "save", __file__, "--batch", "seed"), "expected a folder"),
        (("snapshot", "check", f"{__file__}/below", "--batch", "seed"), "expected a folder"),
        (("reveal", "--tokens", 0), "--tokens: expected at least 1"),
        (("reveal", "--tokens", 100000000), "--tokens: expected at most 4096"),
        (("reveal", "--layouts", "17x1", "--tiles", 16), "--layouts: expected a TP degree of 1 to 16"),
        (("reveal", "--sequences", 3), "--sequences: expected an even number"),
        (("snapshot", "check", ".", "--beta", "-1"), "--beta"),
        (
            ("snapshot", "check", "absent", "--batch", "seed"),
            "absent: expected a folder with a snapshot, got nothing",
        ),
        (("compare", "missing.json", "missing.json"), "a report or a snapshot"),
    ],
)
def test_a_wrong_request_is_refused(tokens: tuple[object, ...], words: str) -> None:
    with pytest.raises(GRPOVerifyError, match=words):
        ask(*tokens)


def test_snapshots_and_their_comparison(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.mkdir()
    assert ask("snapshot", "check", one, "--batch", "seed")[1] == 3, "nothing is there yet"
    text, status = ask("snapshot", "save", one, "--batch", "seed", "--seed", 1)
    assert (status, text.splitlines()[0]) == (0, "saved: grpo_loss/seed/s1: the snapshot has no such entry")
    text, status = ask("snapshot", "check", one, "--batch", "seed", "--seed", 1, "--json")
    report = json.loads(text)
    assert (status, report["verdict"]) == (0, "match")
    assert report["notes"] == ["snapshot: 1 match"]
    assert ask("snapshot", "save", other, "--batch", "seed", "--seed", 1, "--temperature", 2)[1] == 0
    text, status = ask("compare", one, other)
    assert status == 1
    assert "objective.temperature: 1.0 -> 2.0" in text
    assert text.index("contract: 1") < text.index("environment: nothing") < text.index("numbers: ")
    assert json.loads(ask("compare", one, one, "--json")[0])["exit_status"] == 0


def test_a_drifting_snapshot_is_kept_and_status_1(tmp_path: Path) -> None:
    ask("snapshot", "save", tmp_path, "--batch", "seed")
    (entry,) = tmp_path.glob("*/expected.json")
    content = json.loads(entry.read_text())
    content["quantities"]["loss"]["digest"] = "0" * 64
    entry.write_text(json.dumps(content))
    text, status = ask("snapshot", "save", tmp_path, "--batch", "seed")
    assert (status, "--update replaces what differs" in text) == (1, True)
    assert ask("snapshot", "check", tmp_path, "--batch", "seed", "--update")[1] == 3, (
        "what was replaced proves nothing"
    )
    assert ask("snapshot", "check", tmp_path, "--batch", "seed")[1] == 0
