"""How long it takes to hand the arm back to a policy: it holds, then the policy's action is scaled up."""

from typing import Final

HOLD_MS: Final = 500
"""Time for which the arm holds after the person released the clutch, who may press it again."""
RAMP_MS: Final = 300
"""Time in which the policy's action is then scaled up from zero to full."""
