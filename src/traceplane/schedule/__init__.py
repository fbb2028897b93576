"""When schedules are due and markets are open. Libraries do the calendar work.

cron               cron schedules, in UTC
exchange_sessions  the sessions of an exchange, printed by a separate process
market_hours       whether a market was open at a time
"""
