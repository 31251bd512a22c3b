"""Publishing: one self-contained report a forecast, and an index of them all."""

from reports.assemble import build_context as build_context
from reports.build import build_report as build_report
from reports.context import ReportContext as ReportContext
from reports.site import build_site as build_site
