"""How the platform's processes live, and how their calls share transactions.

group_commit  concurrent calls share one transaction
process       how a process lives: background loops, tasks that live and die together, a graceful stop
"""
