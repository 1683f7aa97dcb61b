"""fastText's training, as a program of its own: `quality_fitting.py LINES MODEL PARAMETERS`, the last as JSON.

`stages.quality_training` runs it as a child whose memory nobody has used before, since what fastText does not initialise decides
the model, and whose end is not its own. Nothing of corpusmill is imported here. Exit code 1 with the reason as the last line of
standard error.
"""

import json
import sys

import fasttext

if __name__ == "__main__":
    lines, model, parameters = sys.argv[1:]
    try:
        fasttext.train_supervised(lines, **json.loads(parameters)).save_model(model)
    except (RuntimeError, ValueError, MemoryError) as error:
        print(error, file=sys.stderr)
        sys.exit(1)
