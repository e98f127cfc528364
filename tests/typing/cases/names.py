"""What dra_kit has, and what it has not."""

import dra_kit as dra
import dra_kit.testing

version: str = dra.__version__
prepared: dra.Prepard  # error: name-defined reportAttributeAccessIssue
dra.Preparred()  # error: attr-defined reportAttributeAccessIssue
dra_kit.testing.units(dra.Preparer)  # error: attr-defined reportAttributeAccessIssue
