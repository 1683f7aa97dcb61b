"""Questions to a finished corpus. Each module answers one with plain rows (dataclasses or dictionaries); `commands` prints them.

Nothing here writes to a corpus but `takedown`, which writes another one. What needs texts is in `stages.audit_texts`.
"""
