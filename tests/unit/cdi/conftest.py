from __future__ import annotations

from hypothesis import HealthCheck, settings

# a busy machine is no failure
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")
