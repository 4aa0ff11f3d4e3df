"""The head of a report: which op ran where, on which inputs, under which contract."""

from reports.grouping import listed, plural
from reports.model import Report

_FINGERPRINT_CHARS = 12


def facts(report: Report) -> dict[str, str]:
    """Return what is known of op, device, transport, batches, contract and preflight, by name."""
    ordinary = [case for case in report.cases if not case.expect.is_planted]
    device = report.environment.get("device_name") or report.environment.get("device")
    known = {
        "op": listed(case.op for case in ordinary),
        "on": str(device or ""),
        "via": listed(case.transport for case in report.cases if case.transport),
        "batch": listed(case.batch for case in ordinary),
        "contract": contract_words(report),
        "preflight": report.preflight or "",
    }
    return {name: value for name, value in known.items() if value}


def contract_words(report: Report) -> str:
    """Return the short fingerprint; with several batches it stands for all their contracts together."""
    fingerprint = (report.numeric_fingerprint or "")[:_FINGERPRINT_CHARS]
    batches = len({case.batch for case in report.cases if case.batch in report.contract})
    if not fingerprint or batches < 2:
        return fingerprint
    return f"{fingerprint} (of {plural(batches, 'batch', 'batches')})"
