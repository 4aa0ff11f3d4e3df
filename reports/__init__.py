"""The report of a run and its renderings; needs neither torch nor a device."""

from reports.cases import CaseResult, FirstDrift, Layout, QuantityResult, Rank
from reports.formats import RENDERERS, render
from reports.loading import SCHEMA_VERSION, ReportFormatError
from reports.model import Planted, Report, ReportError
from reports.verdicts import Expect, ReportVerdict, Verdict, settle

__all__ = [
    "RENDERERS",
    "SCHEMA_VERSION",
    "CaseResult",
    "Expect",
    "FirstDrift",
    "Layout",
    "Planted",
    "QuantityResult",
    "Rank",
    "Report",
    "ReportError",
    "ReportFormatError",
    "ReportVerdict",
    "Verdict",
    "render",
    "settle",
]
