"""`python -m pipeline run …`: the command line from a checkout, such as in `ray job submit --working-dir .`."""

from pipeline.commands import app

app()
