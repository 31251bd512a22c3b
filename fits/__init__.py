"""From runs to a law: fits with honest uncertainty, and the distributions that forecasts register."""

from fits.fit import fit as fit
from fits.fit import refit as refit
from fits.isoflop import IsoflopResult as IsoflopResult
from fits.isoflop import isoflop as isoflop
from fits.law import AbstractLaw as AbstractLaw
from fits.law import AbstractTermLaw as AbstractTermLaw
from fits.law import Param as Param
from fits.laws import LAWS as LAWS
from fits.predictive import Predictive as Predictive
from fits.result import FitResult as FitResult
from fits.result import read_fit as read_fit
from fits.solve import FitStatus as FitStatus
from fits.spec import FitSpec as FitSpec
