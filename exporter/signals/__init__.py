"""One module a subject: pure functions from what was observed to values. No HTTP, no asyncio, no clock."""
