from __future__ import annotations

import subprocess
import sys

import pytest

from harness.own_ops.op_names import check_backend
from harness.settings.request_error import RequestError
from harness.settings.run_config import RunConfig
from loss_ops import kernel_registry


@pytest.mark.parametrize("field", ["op", "backend"])
def test_a_backend_that_this_device_cannot_run_is_refused_by_the_setting_that_names_it(
    field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    config = RunConfig(**{field: "triton"})
    with pytest.raises(
        RequestError, match="triton: on the CPU only by name and in Triton's interpreter"
    ) as refused:
        check_backend(config, "cpu")
    assert [problem.code for problem in refused.value.problems] == [f"request.{field}"]
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    check_backend(config, "cpu")


@pytest.mark.parametrize("op", ["native", "grpo_loss", "somewhere.else:loss"])
def test_what_runs_anywhere_or_is_the_users_own_is_left_alone(op: str) -> None:
    check_backend(RunConfig(op=op), "cpu")


def test_the_registry_gives_its_reason_without_loading_the_backend() -> None:
    script = (
        "from loss_ops import kernel_registry as r; import sys\n"
        "print(r.refusal('grpo_loss', 'native', device='cuda'), r.refusal('grpo_loss', 'native', device='tpu'))\n"
        "sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "None runs on cpu, cuda, not on tpu\n"
    with pytest.raises(ValueError, match="one of triton, native"):
        kernel_registry.refusal("grpo_loss", "tritno", device="cpu")
