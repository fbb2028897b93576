"""The sessions of an exchange over ten years, printed as JSON: [[opens, closes], ...] in seconds since 1970.

    python -m traceplane.schedule.exchange_sessions XNYS 2020

A separate process, because the library imports pandas, which would cost the caller 50 MB.
"""

from __future__ import annotations

import json
import sys


def main(calendar: str, first_year: int) -> None:
    import exchange_calendars

    sessions = exchange_calendars.get_calendar(
        calendar, start=f"{first_year}-01-01", end=f"{first_year + 9}-12-31"
    )
    print(
        json.dumps(
            [[o.timestamp(), c.timestamp()] for o, c in zip(sessions.opens, sessions.closes, strict=True)]
        )
    )


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
