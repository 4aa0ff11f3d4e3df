"""What a result depends on beside the contract: the processor's model above all."""

import platform
from pathlib import Path

import pytest

from harness.environment import processor


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "processor\t: 0\ncpu family\t: 25\nmodel\t\t: 17\nmodel name\t: X 9\n\nprocessor\t: 1\nmodel\t: 3\n",
            ["X 9", "family 25", "model 17"],
        ),
        (
            "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd40\n",
            [f"{platform.machine()} CPU", "implementer 0x41", "part 0xd40"],
        ),
        ("", [f"{platform.machine()} CPU"]),
    ],
)
def test_the_processor_is_told_as_far_as_it_is_known(tmp_path: Path, text: str, told: list[str]) -> None:
    (tmp_path / "cpuinfo").write_text(text)
    assert processor(tmp_path / "cpuinfo") == told
    assert processor(tmp_path / "none") == [f"{platform.machine()} CPU"]
