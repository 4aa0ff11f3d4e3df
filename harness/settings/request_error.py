"""The refusal of a request."""

from __future__ import annotations

from grpo_contract import GRPOVerifyError


class RequestError(GRPOVerifyError):
    """A request that cannot be run: flags, configuration, names or paths."""

    code = "request"
    title = "invalid request"
