"""When schedules are due and markets are open. Libraries do the calendar work.

cron               the times of cron schedules, in a time zone
due_ticks          which ticks of a cron source fire now, and which are skipped
exchange_sessions  the sessions of an exchange, printed by a separate process
market_hours       whether a market was open at a time
"""
