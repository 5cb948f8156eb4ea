"""The former name of `ffalm.federate.inference`, for one release."""

import warnings

from ffalm.federate.inference import Trained

__all__ = ["Trained"]

warnings.warn("ffalm.federate.trained is now ffalm.federate.inference", DeprecationWarning, stacklevel=2)
