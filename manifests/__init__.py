"""What a corpus is on disk, and how to question it: schemas, rules, logs; `verification`, `audit`, `report`.

This package imports none of the other three, and neither ray nor torch.
"""
