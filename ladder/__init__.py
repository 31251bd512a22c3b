"""What to train: ladders of compute-matched configurations, and the vocabulary of the suite."""

from ladder.errors import ForetellError as ForetellError
from ladder.errors import InputError as InputError
from ladder.errors import UnusableError as UnusableError
from ladder.errors import VerificationError as VerificationError
from ladder.flops import FlopConvention as FlopConvention
from ladder.generate import make_rung as make_rung
from ladder.generate import plan_isoflop as plan_isoflop
from ladder.recipe import recipe_named as recipe_named
from ladder.rung import Ladder as Ladder
from ladder.rung import Role as Role
from ladder.rung import Rung as Rung
from ladder.rung import read_ladder as read_ladder
from ladder.shape import MoeShape as MoeShape
from ladder.study import Study as Study
