"""Say it before, check it after: registered forecasts, their ledger, their resolution and scores.

The verbs are functions of the modules named after them: ``from forecasts.register import register``.
"""

from forecasts.record import Check as Check
from forecasts.record import Forecast as Forecast
from forecasts.record import Outcome as Outcome
from forecasts.record import SeenState as SeenState
from forecasts.record import read_check as read_check
from forecasts.record import read_forecast as read_forecast
