"""`python -m trainer train …`: the trainer's commands on a machine that has nothing else of corpusmill's installed."""

from trainer.commands import app

app(prog_name="python -m trainer")
