"""How many examples a property of `test_properties.py` is tried on, and that a run can be repeated."""
from importlib.util import find_spec

if find_spec("hypothesis"):  # a machine that runs `test_devices.py` only may lack it
    from hypothesis import HealthCheck, settings
    common = dict(deadline=None, print_blob=True, database=None, suppress_health_check=[HealthCheck.too_slow])   # nothing here fails on timing
    settings.register_profile("quick", max_examples=100, derandomize=True, **common)       # the same examples in every run
    settings.register_profile("thorough", max_examples=2000, **common)                     # others in every run
    settings.load_profile("quick")                                                         # the command line's --hypothesis-profile comes later
