"""Several processes: who they are, how a model is spread over them, whether they agree."""
