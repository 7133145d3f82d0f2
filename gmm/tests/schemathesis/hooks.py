"""Changes requests before they are sent, where what is generated would test the wait or the writing of a number."""

import schemathesis

# A long wait is no other case than a short one.
WAIT_MS_MAX = 20


def plain(value):
    """Writes whole numbers without a fraction: JSON Schema takes 1.0 for an integer, the manager's reader does not."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return value


def bounded(values):
    if not isinstance(values, dict):
        return values
    waits = [key for key in ("wait_ms", "owner_wait_ms") if isinstance(values.get(key), int)]
    return {**values, **{key: min(values[key], WAIT_MS_MAX) for key in waits}}


@schemathesis.hook
def before_call(context, case, kwargs):
    case.query = bounded(case.query)
    case.body = bounded(plain(case.body))
